#include "offload/weight_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "core/stream_cpu.h"
#include "offload/layer_offload.h"
#include "optim/optimizer.h"
#include "tests/offload/layer_model.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kLayers = 4;

// A model with an optimizer that updates views of its values, as shards of one rank are.
struct Training {
  Training(Stream& stream_in, DType dtype)
      : stream(stream_in),
        model(stream, kLayers, dtype),
        shards(make_shards(model)),
        store(stream, pointers(), *rule),
        optimizer(stream, pointers(), *rule, store) {}

  static std::vector<std::unique_ptr<Parameter>> make_shards(ToyModel& model) {
    std::vector<std::unique_ptr<Parameter>> shards;
    for (const Parameter* whole : model.parameters()) {
      const int64_t rows = whole->shape[0], half = rows / 2;
      for (const auto& [begin, end] : {std::pair{int64_t{0}, half}, std::pair{half, rows}}) {
        auto shard = std::make_unique<Parameter>(*whole);
        shard->value = whole->value.rows(begin, end);
        shard->grad = whole->grad.rows(begin, end);
        shard->shape = shard->value.shape();
        shards.push_back(std::move(shard));
      }
    }
    return shards;
  }
  std::vector<Parameter*> pointers() const {
    std::vector<Parameter*> result;
    for (const auto& shard : shards) result.push_back(shard.get());
    return result;
  }
  void update(int64_t step) {
    OptimizerSettings settings;
    settings.lr = 0.05;
    optimizer.update(stream, settings, step, 10, 1.0);
  }
  Values masters() {
    Values values;
    for (Parameter* shard : pointers())
      values.push_back(read_back_as_double(stream, store.state(*shard).master));
    return values;
  }

  Stream& stream;
  ToyModel model;
  std::vector<std::unique_ptr<Parameter>> shards;
  std::unique_ptr<UpdateRule> rule = make_adamw(0.9, 0.95, 1e-8);
  DeviceStateStore store;
  Optimizer optimizer;
};

class WeightOffloadTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    device().set_poison_memory(true);  // what is read before it is written shows
  }
  int64_t parameter_bytes() {
    stream().synchronize();
    return usage(device().memory(), "parameters").current;
  }
  // Of all layers that move, in units of a layer.
  int64_t layers_on_device(int64_t all_bytes, int num_layers) {
    const int64_t away = all_bytes - parameter_bytes();
    return num_layers - away / ToyLayer::narrow_bytes(dtype());
  }
};

TEST_P(WeightOffloadTest, ChangesNoBit) {
  const std::vector<PassAction> actions = actions_of("F0 B0 F1 B1");
  BlockHooks no_hooks;
  Training plain(stream(), dtype());
  Values expected;
  for (const int64_t step : {1, 2, 3}) {
    for (auto& values :
         run_step(stream(), plain.model, actions, nullptr, no_hooks, static_cast<uint64_t>(step)))
      expected.push_back(std::move(values));
    plain.update(step);
    expected.push_back(evaluate(stream(), plain.model, no_hooks));
  }
  for (const int num_layers : {1, 2, 3}) {
    for (const bool activations : {false, true}) {
      SCOPED_TRACE(concat(num_layers, " layers, activations ", activations));
      Training training(stream(), dtype());
      LayerOffload offload(device(), {num_layers, kLayers, activations, true, true});
      WeightOffload weights(offload.engine(), training.model.parameters_by_block(), num_layers,
                            training.pointers());
      weights.send_all(stream());
      JoinedHooks hooks;
      hooks.all = {&offload, &weights};
      Values actual;
      for (const int64_t step : {1, 2, 3}) {
        for (auto& values : run_step(stream(), training.model, actions, &offload, hooks,
                                     static_cast<uint64_t>(step)))
          actual.push_back(std::move(values));
        weights.make_room(stream());
        training.update(step);
        weights.send_all(stream());
        actual.push_back(evaluate(stream(), training.model, weights));
      }
      EXPECT_EQ(actual, expected);
      EXPECT_EQ(training.masters(), plain.masters());
    }
  }
}

TEST_P(WeightOffloadTest, TheDeviceHoldsALayerAndTheNextOne) {
  constexpr int kMoved = 3;
  Training training(stream(), dtype());
  const int64_t all = parameter_bytes();
  LayerOffload offload(device(), {kMoved, kLayers, false});
  WeightOffload weights(offload.engine(), training.model.parameters_by_block(), kMoved,
                        training.pointers());
  EXPECT_EQ(weights.bytes(), kMoved * ToyLayer::narrow_bytes(dtype()));
  weights.send_all(stream());
  std::vector<int64_t> forward, backward;
  JoinedHooks hooks;
  hooks.all = {&weights};
  hooks.before = [&](int) {
    offload.traffic();
    forward.push_back(layers_on_device(all, kMoved));
  };
  hooks.after = [&](int) { backward.push_back(layers_on_device(all, kMoved)); };
  run_step(stream(), training.model, actions_of("F0 B0 F1 B1"), nullptr, hooks);
  // After the update all are there, and go one by one; then two at a time. Before each block:
  EXPECT_THAT(forward, ElementsAre(3, 3, 2, 1, 0, 0,  //
                                   1, 2, 2, 1, 0, 0));
  // After the backward of each block, with the one that is next, and the one after it.
  EXPECT_THAT(backward, ElementsAre(1, 2, 2, 1, 1, 1,  //
                                    1, 2, 2, 1, 1, 1));
  EXPECT_EQ(usage(host_ledger(device()), "offloaded weights").current, weights.bytes());
  evaluate(stream(), training.model, weights);
  EXPECT_EQ(layers_on_device(all, kMoved), 0);
  weights.make_room(stream());
  EXPECT_EQ(parameter_bytes(), all);
}

TEST_P(WeightOffloadTest, CopiesEachLayerOncePerUse) {
  constexpr int kMoved = 3;
  Training training(stream(), dtype());
  LayerOffload offload(device(), {kMoved, kLayers, false});
  WeightOffload weights(offload.engine(), training.model.parameters_by_block(), kMoved,
                        training.pointers());
  weights.send_all(stream());
  const int64_t layer = ToyLayer::narrow_bytes(dtype());
  // Step 1: the forward after an update, three backwards; then without the first layer, which
  // stays.
  run_step(stream(), training.model, actions_of("F0 B0 F1 B1"), nullptr, weights);
  ModuleTraffic traffic = offload.traffic().at("layer_weights");
  EXPECT_EQ(traffic.d2h_bytes, kMoved * layer);
  EXPECT_EQ(traffic.h2d_bytes, (0 + 3 + 2 + 3) * layer);
  weights.make_room(stream());
  training.update(1);
  weights.send_all(stream());
  traffic = offload.traffic().at("layer_weights");
  EXPECT_EQ(traffic.d2h_bytes, 2 * kMoved * layer);
  EXPECT_EQ(traffic.h2d_bytes, 8 * layer);
}

TEST_P(WeightOffloadTest, UpdatesMayFollowEachOther) {
  BlockHooks no_hooks;
  Training plain(stream(), dtype()), training(stream(), dtype());
  LayerOffload offload(device(), {2, kLayers, false});
  WeightOffload weights(offload.engine(), training.model.parameters_by_block(), 2,
                        training.pointers());
  weights.send_all(stream());
  for (const int64_t step : {1, 2, 3}) {
    plain.update(step);
    weights.make_room(stream());
    training.update(step);
    weights.send_all(stream());
  }
  EXPECT_EQ(evaluate(stream(), training.model, weights), evaluate(stream(), plain.model, no_hooks));
  EXPECT_EQ(evaluate(stream(), training.model, weights), evaluate(stream(), plain.model, no_hooks));
}

TEST_P(WeightOffloadTest, MastersStayOnTheDevice) {
  Training training(stream(), dtype());
  LayerOffload offload(device(), {1, kLayers, false});
  const std::vector<std::vector<Parameter*>> blocks = training.model.parameters_by_block();
  WeightOffload weights(offload.engine(), blocks, 1, training.pointers());
  weights.send_all(stream());
  evaluate(stream(), training.model, weights);
  for (const Parameter* parameter : blocks[1])
    EXPECT_EQ(parameter->value.defined(), parameter->dtype == accumulate_dtype(dtype()))
        << parameter->name;
  for (const Parameter* parameter : blocks[2]) EXPECT_TRUE(parameter->value.defined());
  for (const Parameter* shard : training.pointers())
    EXPECT_EQ(shard->value.defined(),
              !shard->name.starts_with("block1/") || shard->dtype == accumulate_dtype(dtype()))
        << shard->name;
}

INSTANTIATE_TEST_SUITE_P(Devices, WeightOffloadTest,
                         ::testing::Values(DeviceCase{DeviceKind::Cpu, DType::BF16},
                                           DeviceCase{DeviceKind::Cuda, DType::BF16}),
                         case_name);

// The compute stream stands still while everything is enqueued. A copy that does not wait for it
// reads memory that was not written yet, and has time to.
TEST(WeightOffload, CopiesWaitForValuesAndForEachOther) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream("test");
  device->set_poison_memory(true);
  ToyModel model(*stream, kLayers, DType::BF16);
  const std::vector<std::vector<Parameter*>> blocks = model.parameters_by_block();
  const Tensor updated = random_tensor(*stream, blocks[2][1]->shape, DType::BF16, 5);
  const std::vector<double> expected = read_back_as_double(*stream, updated);
  CopyEngine engine(*device);
  WeightOffload weights(engine, blocks, 2, {});
  Tape tape(Tape::Mode::Off);
  const Batch batch;
  StepTotals totals;
  Pass pass(*stream, tape, batch, totals, {}, true);

  std::promise<void> gate;
  enqueue_cpu(*stream, [gate = gate.get_future().share()] { gate.wait(); });
  stream->copy(blocks[2][1]->value, updated);
  weights.send_all(*stream);
  for (int block = 0; block <= 3; ++block) weights.before_forward(pass, block);
  EXPECT_FALSE(blocks[2][1]->value.defined());
  weights.after_backward(pass, 4);  // block 2 starts back
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate.set_value();
  weights.after_backward(pass, 3);
  EXPECT_EQ(read_back_as_double(*stream, blocks[2][1]->value), expected);
}

class WeightOffloadRefusals : public CpuTest {};

TEST_F(WeightOffloadRefusals, ModelsWhoseValuesAreMasters) {
  ToyModel model(stream(), kLayers, DType::F32);
  CopyEngine engine(device());
  EXPECT_THAT([&] { WeightOffload(engine, model.parameters_by_block(), 2, {}); },
              ThrowsMessage<Error>(HasSubstr("stay on the device")));
}

TEST_F(WeightOffloadRefusals, AtLeastOneLayerStays) {
  ToyModel model(stream(), kLayers, DType::BF16);
  CopyEngine engine(device());
  EXPECT_THAT([&] { WeightOffload(engine, model.parameters_by_block(), kLayers, {}); },
              ThrowsMessage<Error>(HasSubstr("4 layers of 6 blocks")));
}

TEST_F(WeightOffloadRefusals, ValuesThatWereNotSentOrAreAway) {
  ToyModel model(stream(), kLayers, DType::BF16);
  CopyEngine engine(device());
  WeightOffload weights(engine, model.parameters_by_block(), 1, {});
  EXPECT_THAT([&] { evaluate(stream(), model, weights); },
              ThrowsMessage<Error>(HasSubstr("block 1 are used, but were not sent")));
  weights.send_all(stream());
  EXPECT_THAT([&] { weights.send_all(stream()); }, ThrowsMessage<Error>(HasSubstr("make_room")));
}

}  // namespace
}  // namespace ferry::testing
