#include "app/train_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/directory.h"
#include "core/comm/control.h"
#include "core/ops/elementwise.h"
#include "tests/support/devices.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// Parameters with random values, masters and moments.
class Model {
 public:
  Model(Stream& stream, DType dtype, uint32_t seed, const Shape& last_shape = {3})
      : stream_(stream) {
    add("embedding/weight", {6, 4}, dtype, seed);
    add("layers/0/moe/experts/fc1/weight", {2, 3, 4}, dtype, seed);
    add("final_norm/weight", last_shape, dtype, seed);
    for (Parameter& parameter : parameters_) pointers_.push_back(&parameter);
    store_ = std::make_unique<DeviceStateStore>(stream, pointers_);
    uint32_t site = 100;
    for (Parameter* parameter : pointers_) {
      AdamwState& state = store_->state(*parameter);
      // Masters that are not representable in bf16, so that rounding shows.
      fill_normal(stream, state.master, 1.0, {seed, 0, ++site}, 0);
      fill_normal(stream, state.exp_avg, 1.0, {seed, 0, ++site}, 0);
      fill_normal(stream, state.exp_avg_sq, 1.0, {seed, 0, ++site}, 0);
      if (!state.master.same_memory(parameter->value)) cast(stream, parameter->value, state.master);
    }
    stream.synchronize();
  }

  const std::vector<Parameter*>& parameters() const { return pointers_; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Parameter* parameter : pointers_) names.push_back(parameter->name);
    return names;
  }
  // All rows of the first `count` parameters.
  std::vector<StoredRows> rows(size_t count = 3) const {
    std::vector<StoredRows> rows;
    for (const Parameter* parameter : pointers_)
      if (rows.size() < count) rows.push_back({parameter, 0, matrix_rows(parameter->shape)});
    return rows;
  }
  StateStore& store() { return *store_; }

  // Every byte of values and state.
  std::string bytes() {
    std::string all;
    for (Parameter* parameter : pointers_) {
      AdamwState& state = store_->state(*parameter);
      for (const Tensor& tensor : {parameter->value, state.master, state.exp_avg, state.exp_avg_sq})
        all.append(static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes()));
    }
    return all;
  }
  std::string moments() {
    std::string all;
    for (Parameter* parameter : pointers_)
      for (const Tensor& tensor :
           {store_->state(*parameter).exp_avg, store_->state(*parameter).exp_avg_sq})
        all.append(static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes()));
    return all;
  }
  std::string values() {
    std::string all;
    for (Parameter* parameter : pointers_)
      all.append(static_cast<const char*>(parameter->value.raw()),
                 static_cast<size_t>(parameter->value.bytes()));
    return all;
  }

 private:
  void add(const std::string& name, const Shape& shape, DType dtype, uint32_t seed) {
    Parameter parameter;
    parameter.name = name;
    parameter.shape = shape;
    parameter.dtype = dtype;
    parameter.value = Tensor::empty(stream_, "weights", shape, dtype);
    fill_normal(stream_, parameter.value, 1.0, {seed, 0, static_cast<uint32_t>(parameters_.size())},
                0);
    parameters_.push_back(parameter);
  }

  Stream& stream_;
  std::vector<Parameter> parameters_;
  std::vector<Parameter*> pointers_;
  std::unique_ptr<DeviceStateStore> store_;
};

class TrainState : public testing::CpuTest {
 protected:
  Checkpoint save(Model& model) { return save(model, model.rows()); }
  Checkpoint save(Model& model, const std::vector<StoredRows>& rows) {
    SoloControl control;
    const Attempt attempt = begin_attempt(run_.path(), control);
    const StateSnapshot snapshot(stream(), rows, model.store());
    SaveRequest request;
    request.run_dir = run_.path();
    request.step = 3;
    request.attempt = attempt.number;
    request.slices = snapshot.slices();
    request.state = to_state({3, 24, 384}, 1234, 1e-3, 0xabcdef);
    request.descriptions = state_descriptions();
    return Checkpoint::open(save_checkpoint(request, control).directory);
  }

  template <class Body>
  static std::string storage_error(Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Storage);
      return error.what();
    }
    return "no error";
  }

  testing::TempDir run_;
};

TEST_F(TrainState, ComesBackBitForBit) {
  for (const DType dtype : {DType::F32, DType::F64, DType::BF16}) {
    Model saved(stream(), dtype, 1), loaded(stream(), dtype, 2);
    ASSERT_NE(saved.bytes(), loaded.bytes());
    const Checkpoint checkpoint = save(saved);
    const LoadReport report =
        load_state(stream(), checkpoint, loaded.parameters(), loaded.store(), false);
    stream().synchronize();
    EXPECT_EQ(saved.bytes(), loaded.bytes()) << name_of(dtype);
    const int64_t elements = 6 * 4 + 2 * 3 * 4 + 3;
    EXPECT_EQ(report.bytes, state_bytes(elements, dtype == DType::F64 ? 8 : 4));
    EXPECT_EQ(report.bytes, 3 * elements * (dtype == DType::F64 ? 8 : 4)) << "of every tensor";
  }
}

TEST_F(TrainState, WeightsOnlyLeavesTheMoments) {
  Model saved(stream(), DType::BF16, 1), loaded(stream(), DType::BF16, 2);
  const Checkpoint checkpoint = save(saved);
  const std::string before = loaded.moments();
  load_state(stream(), checkpoint, loaded.parameters(), loaded.store(), true);
  stream().synchronize();
  EXPECT_EQ(loaded.moments(), before);
  EXPECT_EQ(loaded.values(), saved.values());
}

TEST_F(TrainState, WeightsAloneFillValuesOfEveryDtype) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    Model saved(stream(), dtype, 1), loaded(stream(), dtype, 2);
    const Checkpoint checkpoint = save(saved);
    load_weights(stream(), checkpoint, loaded.parameters());
    stream().synchronize();
    EXPECT_EQ(loaded.values(), saved.values()) << name_of(dtype);
  }
}

TEST_F(TrainState, AnotherModelIsRefusedByName) {
  Model saved(stream(), DType::F32, 1);
  const Checkpoint checkpoint = save(saved);
  Model wider(stream(), DType::F32, 1, {5});
  const std::string shape = storage_error(
      [&] { load_state(stream(), checkpoint, wider.parameters(), wider.store(), false); });
  EXPECT_THAT(shape, HasSubstr("model/final_norm/weight"));
  EXPECT_THAT(shape, HasSubstr("5"));
  EXPECT_THAT(shape, HasSubstr("3"));

  refuse_other_model(checkpoint, saved.names());
  const std::string other = storage_error([&] {
    refuse_other_model(checkpoint, {"embedding/weight", "layers/1/norm/weight"});
  });
  EXPECT_THAT(other, HasSubstr("is of another model\n  --> model/"));
  EXPECT_THAT(other, HasSubstr("the model of this configuration has no such tensor"));
  EXPECT_THAT(
      storage_error([&] {
        refuse_other_model(checkpoint, {"embedding/weight", "layers/0/moe/experts/fc1/weight"});
      }),
      HasSubstr("is of another model\n  --> model/final_norm/weight [3]"));
}

TEST_F(TrainState, AnAbsentTensorIsNamed) {
  Model whole(stream(), DType::F32, 1), wanted(stream(), DType::F32, 1);
  const Checkpoint checkpoint = save(whole, whole.rows(2));
  EXPECT_THAT(storage_error([&] {
                load_state(stream(), checkpoint, wanted.parameters(), wanted.store(), false);
              }),
              HasSubstr("model/final_norm/weight"));
  EXPECT_THAT(storage_error([&] { load_weights(stream(), checkpoint, wanted.parameters()); }),
              HasSubstr("model/final_norm/weight"));
}

// Rows in any order and number of slices are the same checkpoint.
TEST_F(TrainState, RowsOfAParameterMayBeStoredApart) {
  Model model(stream(), DType::BF16, 1), loaded(stream(), DType::BF16, 2);
  const std::string whole = save(model).root();
  const auto& p = model.parameters();
  const std::vector<StoredRows> apart = {{p[2], 2, 3}, {p[0], 0, 1}, {p[0], 1, 6}, {p[1], 0, 5},
                                         {p[2], 0, 2}, {p[1], 5, 6}, {p[0], 6, 6}};
  const Checkpoint checkpoint = save(model, apart);
  EXPECT_EQ(checkpoint.root(), whole);
  load_state(stream(), checkpoint, loaded.parameters(), loaded.store(), false);
  stream().synchronize();
  EXPECT_EQ(loaded.bytes(), model.bytes());
}

TEST_F(TrainState, SnapshotsDoNotChangeWithTheModel) {
  Model model(stream(), DType::F32, 1);
  const StateSnapshot snapshot(stream(), model.rows(), model.store());
  const auto& slice = snapshot.slices()[0];
  const float before = static_cast<const float*>(slice.data)[0];
  fill(stream(), model.parameters()[0]->value, 77.0);
  stream().synchronize();
  EXPECT_EQ(static_cast<const float*>(slice.data)[0], before);
  EXPECT_NE(before, 77.0f);
}

TEST_F(TrainState, ScalarsComeBack) {
  const State state = to_state({3, 24, 384}, 1234, 1e-3, 0xabcdef);
  const Progress progress = progress_of(state, "x");
  EXPECT_EQ(progress.step, 3);
  EXPECT_EQ(progress.samples, 24);
  EXPECT_EQ(progress.tokens, 384);
  EXPECT_EQ(std::get<std::string>(state.at("data/fingerprint")), "0000000000abcdef");
  EXPECT_EQ(std::get<int64_t>(state.at("data/position")), 24);
  EXPECT_EQ(std::get<int64_t>(state.at("random/seed")), 1234);
  EXPECT_EQ(std::get<double>(state.at("lr")), 1e-3);
  for (const auto& [name, value] : state)
    EXPECT_TRUE(state_descriptions().contains("state/" + name)) << name;
}

TEST_F(TrainState, ScalarsThatAreMissingOrOfAnotherTypeAreNamed) {
  State state = to_state({3, 24, 384}, 1234, 1e-3, 0);
  state["samples"] = 24.0;
  EXPECT_THAT(storage_error([&] { progress_of(state, "step-3"); }),
              HasSubstr("step-3: scalar 'samples' is not an integer"));
  state.erase("samples");
  EXPECT_THAT(storage_error([&] { progress_of(state, "step-3"); }),
              HasSubstr("step-3 has no scalar 'samples'"));
}

}  // namespace
}  // namespace ferry
