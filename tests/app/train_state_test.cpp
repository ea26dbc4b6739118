#include "app/train_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "app/state_snapshot.h"
#include "checkpoint/directory.h"
#include "core/comm/control.h"
#include "core/ops/elementwise.h"
#include "offload/hybrid_device_optimizer.h"
#include "tests/support/devices.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// Parameters with random values, masters and moments, which may be on the host.
struct Options {
  Shape last_shape = {3};
  std::optional<double> fraction = {};  // of HybridDeviceOptimizer
  MomentTypes moment_types = {};
  bool sgd = false;
};

class Model {
 public:
  Model(Stream& stream, DType dtype, uint32_t seed, const Options& options = {})
      : stream_(stream), rule_(options.sgd ? make_sgd(0.9) : make_adamw(0.9, 0.95, 1e-8)) {
    add("embedding/weight", {6, 4}, dtype, seed);
    add("layers/0/moe/experts/fc1/weight", {2, 3, 4}, dtype, seed);
    add("final_norm/weight", options.last_shape, dtype, seed);
    for (Parameter& parameter : parameters_) pointers_.push_back(&parameter);
    if (options.fraction) {
      HybridSettings settings;
      settings.fraction = *options.fraction;
      settings.moment_types = options.moment_types;
      settings.chunk_elements = 8;
      store_ = std::make_unique<HybridDeviceOptimizer>(
          stream, std::vector<std::vector<Parameter*>>{pointers_}, *rule_, settings);
    } else {
      store_ = std::make_unique<DeviceStateStore>(stream, pointers_, *rule_, options.moment_types);
    }
    uint32_t site = 100;
    for (Parameter* parameter : pointers_) {
      // Masters that are not representable in bf16, so that rounding shows.
      for (const Tensor& tensor : tensors(*parameter))
        fill_normal(stream, tensor, 1.0, {seed, 0, ++site}, 0);
    }
    publish();
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
  const UpdateRule& rule() const { return *rule_; }
  // Master and moments.
  std::vector<Tensor> tensors(const Parameter& parameter) {
    const ParameterState& state = store_->state(parameter);
    std::vector<Tensor> all{state.master};
    all.insert(all.end(), state.moments.begin(), state.moments.end());
    return all;
  }
  // After writing state.
  void publish() {
    stream_.synchronize();
    for (const Parameter* parameter : pointers_) store_->publish(stream_, *parameter);
    stream_.synchronize();
  }

  // Every byte of values and state.
  std::string bytes() {
    std::string all = values();
    for (const Parameter* parameter : pointers_)
      for (const Tensor& tensor : tensors(*parameter))
        all.append(static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes()));
    return all;
  }
  std::string moments() {
    std::string all;
    for (const Parameter* parameter : pointers_)
      for (const Tensor& tensor : store_->state(*parameter).moments)
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
  std::unique_ptr<UpdateRule> rule_;
  std::unique_ptr<StateStore> store_;
};

class TrainState : public testing::CpuTest {
 protected:
  Checkpoint save(Model& model) { return save(model, model.rows()); }
  Checkpoint save(Model& model, const std::vector<StoredRows>& rows) {
    SoloControl control;
    const Attempt attempt = begin_attempt(run_.path(), control);
    const StateSnapshot snapshot =
        StateSnapshot::now({stream(), rows, model.rule(), model.store()});
    SaveRequest request;
    request.run_dir = run_.path();
    request.step = 3;
    request.attempt = attempt.number;
    request.slices = snapshot.slices();
    request.state = to_state({3, 24, 384}, 1234, 1e-3, 0xabcdef);
    request.descriptions = state_descriptions();
    return Checkpoint::open(save_checkpoint(request, control).directory);
  }

  LoadReport load(const Checkpoint& checkpoint, Model& model, bool weights_only = false) {
    const LoadReport report = load_state(stream(), checkpoint, model.parameters(), model.rule(),
                                         model.store(), weights_only);
    stream().synchronize();
    return report;
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
    const LoadReport report = load(checkpoint, loaded);
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
  load(checkpoint, loaded, /*weights_only=*/true);
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
  Model wider(stream(), DType::F32, 1, {.last_shape = {5}});
  const std::string shape = storage_error([&] { load(checkpoint, wider); });
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
  EXPECT_THAT(storage_error([&] { load(checkpoint, wanted); }),
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
  load(checkpoint, loaded);
  stream().synchronize();
  EXPECT_EQ(loaded.bytes(), model.bytes());
}

// Where the state was is not to be seen in a checkpoint, and any place reads it.
TEST_F(TrainState, ACheckpointKnowsNothingOfPlaces) {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F64}) {
    Model plain(stream(), dtype, 1);
    const std::string root = save(plain).root(), bytes = plain.bytes();
    for (const double from : {0.0, 0.5, 1.0}) {
      Model saved(stream(), dtype, 1, {.fraction = from});
      ASSERT_EQ(saved.bytes(), bytes);
      const Checkpoint checkpoint = save(saved);
      EXPECT_EQ(checkpoint.root(), root) << name_of(dtype) << " at " << from;
      for (const double to : {0.0, 0.5, 1.0}) {
        Model loaded(stream(), dtype, 2, {.fraction = to});
        ASSERT_NE(loaded.bytes(), bytes);
        load(checkpoint, loaded);
        EXPECT_EQ(loaded.bytes(), bytes) << name_of(dtype) << " from " << from << " to " << to;
      }
    }
  }
}

// Denormals, zeros of both signs, infinities and payloads of NaNs.
TEST_F(TrainState, EveryBitComesBackFromEveryPlaceToEveryPlace) {
  const uint32_t planted[] = {1,          0x80000000, 0x7f800000, 0xff800000,
                              0x7fc12345, 0xffabcdef, 0x807fffff};
  const std::optional<double> places[] = {std::nullopt, 0.0, 0.5, 1.0};
  for (const auto& from : places) {
    Model saved(stream(), DType::BF16, 1, {.fraction = from});
    for (const Parameter* parameter : saved.parameters())
      for (const Tensor& tensor : saved.tensors(*parameter))
        for (int64_t i = 0; i < tensor.numel(); ++i)
          std::memcpy(tensor.data<float>() + i, &planted[static_cast<size_t>(i) % 7], 4);
    saved.publish();
    const Checkpoint checkpoint = save(saved);
    for (const auto& to : places) {
      Model loaded(stream(), DType::BF16, 2, {.fraction = to});
      load(checkpoint, loaded);
      EXPECT_EQ(loaded.bytes(), saved.bytes()) << from.value_or(-1) << " to " << to.value_or(-1);
    }
  }
}

TEST_F(TrainState, NarrowMomentsAreStoredWide) {
  const Options narrow{.moment_types = {DType::BF16, DType::BF16}};
  Model saved(stream(), DType::BF16, 1, narrow), same(stream(), DType::BF16, 2, narrow);
  const Checkpoint checkpoint = save(saved);
  for (const StoredTensor& stored : checkpoint.manifest().tensors)
    EXPECT_EQ(stored.dtype, DType::F32) << stored.name;
  load(checkpoint, same);
  EXPECT_EQ(same.bytes(), saved.bytes());
  // Where they are wide they are the same numbers.
  for (const std::optional<double>& fraction : {std::optional<double>(), std::optional(1.0)}) {
    Model wide(stream(), DType::BF16, 2, {.fraction = fraction});
    load(checkpoint, wide);
    EXPECT_EQ(wide.values(), saved.values());
    for (size_t p = 0; p < 3; ++p)
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(read_back_as_double(stream(), wide.tensors(*wide.parameters()[p])[i]),
                  read_back_as_double(stream(), saved.tensors(*saved.parameters()[p])[i]));
  }
}

TEST_F(TrainState, SgdHasItsMomentum) {
  Model saved(stream(), DType::BF16, 1, {.sgd = true}),
      loaded(stream(), DType::BF16, 2, {.sgd = true});
  const Checkpoint checkpoint = save(saved);
  std::string names;
  for (const StoredTensor& stored : checkpoint.manifest().tensors) {
    if (!stored.name.ends_with("embedding/weight")) continue;
    names += stored.name + " ";
    const std::string kind = stored.name.substr(0, stored.name.find("/embedding"));
    EXPECT_TRUE(state_descriptions().contains(kind)) << kind;
  }
  EXPECT_EQ(names, "model/embedding/weight optimizer/momentum/embedding/weight ");
  load(checkpoint, loaded);
  EXPECT_EQ(loaded.bytes(), saved.bytes());
  // Of another rule it has the weights only.
  Model adamw(stream(), DType::BF16, 2);
  EXPECT_THAT(storage_error([&] { load(checkpoint, adamw); }),
              HasSubstr("optimizer/exp_avg/embedding/weight"));
  load(checkpoint, adamw, /*weights_only=*/true);
  EXPECT_EQ(adamw.values(), saved.values());
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
