#include "offload/layer_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/offload/layer_model.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kLayers = 4;

LayerOffloadConfig config_of(int num_layers, bool double_buffering = false, bool retain = false) {
  return {num_layers, kLayers, true, double_buffering, retain};
}

class LayerOffloadTest : public DeviceTest {
 protected:
  static int64_t layer_bytes(uint64_t seed, int micro) {
    return ToyLayer::saved_bytes(rows_of(seed, micro), GetParam().dtype);
  }
};

TEST_P(LayerOffloadTest, ChangesNoBit) {
  for (const char* order : {"F0 B0 F1 B1 F2 B2", "F0 F1 B0 B1", "F0 F1 B1 B0"}) {
    const std::vector<PassAction> actions = actions_of(order);
    BlockHooks no_hooks;
    ToyModel plain(stream(), kLayers, dtype());
    std::vector<Values> expected;
    for (const uint64_t step : {1, 2, 3})
      expected.push_back(run_step(stream(), plain, actions, nullptr, no_hooks, step));
    const std::vector<double> expected_evaluation = evaluate(stream(), plain, no_hooks);

    for (const int num_layers : {1, 2, 3}) {
      for (const bool double_buffering : {false, true}) {
        for (const bool retain : {false, true}) {
          SCOPED_TRACE(concat(order, ", ", num_layers, " layers, double buffering ",
                              double_buffering, ", retain ", retain));
          ToyModel model(stream(), kLayers, dtype());
          LayerOffload offload(device(), config_of(num_layers, double_buffering, retain));
          for (const uint64_t step : {1, 2, 3}) {
            EXPECT_EQ(run_step(stream(), model, actions, &offload, offload, step),
                      expected[step - 1]);
            EXPECT_EQ(evaluate(stream(), model, offload), expected_evaluation);
            int64_t bytes = 0;
            for (const PassAction& action : actions)
              if (action.forward) bytes += num_layers * layer_bytes(step, action.pass.micro);
            const ModuleTraffic traffic = offload.traffic().at("layer");
            EXPECT_EQ(traffic.d2h_bytes, bytes);
            EXPECT_EQ(traffic.h2d_bytes, bytes);
            EXPECT_GE(traffic.exposed_s, 0);
          }
        }
      }
    }
  }
}

TEST_P(LayerOffloadTest, DeviceMemoryIsLetGoBeforeForwardEnds) {
  // At the head: L - N layers, and what the embedding saved.
  const auto bytes_at_head = [&](LayerOffload* offload) {
    ToyModel model(stream(), kLayers, dtype());
    int64_t bytes = 0;
    JoinedHooks hooks;
    if (offload != nullptr) hooks.all = {offload};
    hooks.before = [&](int block) {
      if (block != kLayers + 1) return;
      stream().synchronize();
      if (offload != nullptr) offload->traffic();
      bytes = device_bytes(device());
    };
    run_step(stream(), model, actions_of("F0 B0"), offload, hooks);
    return bytes;
  };
  const int64_t all = bytes_at_head(nullptr);
  for (const int num_layers : {1, 2, 3}) {
    LayerOffload offload(device(), config_of(num_layers));
    EXPECT_EQ(all - bytes_at_head(&offload), num_layers * layer_bytes(1, 0)) << num_layers;
  }
}

TEST_P(LayerOffloadTest, NoMoreLayersAreOnTheDeviceThanBackwardBeginsWith) {
  constexpr int kMoved = 2;
  ToyModel model(stream(), kLayers, dtype());
  MemoryLedger ledger;
  LayerOffload offload(device(), config_of(kMoved), &ledger);
  std::vector<int64_t> layers, counted;
  int64_t at_embedding = 0, counted_at_embedding = 0;
  JoinedHooks hooks;
  hooks.all = {&offload};
  hooks.before = [&](int block) {
    stream().synchronize();
    offload.traffic();
    if (block == 1) at_embedding = device_bytes(device());
    if (block == 1) counted_at_embedding = ledger.current();
    if (block == 0) return;
    layers.push_back((device_bytes(device()) - at_embedding) / layer_bytes(1, 0));
    counted.push_back((ledger.current() - counted_at_embedding) / layer_bytes(1, 0));
  };
  run_step(stream(), model, actions_of("F0 B0"), &offload, hooks, 1, &ledger);
  // Before each layer and the head.
  EXPECT_THAT(layers, ElementsAre(0, 1, 2, 2, 2));
  EXPECT_THAT(counted, ElementsAre(0, 1, 2, 2, 2));
  EXPECT_EQ(ledger.current(), 0);
}

TEST_P(LayerOffloadTest, LayersComeBackOneAhead) {
  constexpr int kMoved = 3;
  ToyModel model(stream(), kLayers, dtype());
  LayerOffload offload(device(), config_of(kMoved));
  std::vector<int64_t> layers;
  JoinedHooks hooks;
  hooks.all = {&offload};
  hooks.after = [&](int) {
    layers.push_back(offload.traffic()["layer"].h2d_bytes / layer_bytes(1, 0));
  };
  run_step(stream(), model, actions_of("F0 B0"), &offload, hooks);
  // After the head, layers 3 to 0, and the embedding.
  EXPECT_THAT(layers, ElementsAre(0, 1, 2, 3, 3, 3));
}

TEST_P(LayerOffloadTest, DoubleBufferingUsesTwoBuffersOfTheLargestLayer) {
  ToyModel model(stream(), kLayers, dtype());
  LayerOffload offload(device(), config_of(3, true));
  const std::vector<PassAction> actions = actions_of("F0 B0 F1 B1");
  run_step(stream(), model, actions, &offload, offload, 1);  // rows of micro-batch 1 are the most
  const MemoryLedger::Usage first = usage(device().memory(), "layer buffers");
  // What comes back with its layer: without x, which the layer below saved, too.
  const int64_t x_bytes = rows_of(1, 1) * ToyLayer::kWidth * static_cast<int64_t>(size_of(dtype()));
  EXPECT_GE(first.current, 2 * (layer_bytes(1, 1) - x_bytes));
  EXPECT_LE(first.current, 2 * (layer_bytes(1, 1) - x_bytes + 6 * 256));
  for (const uint64_t step : {4, 7}) run_step(stream(), model, actions, &offload, offload, step);
  const MemoryLedger::Usage last = usage(device().memory(), "layer buffers");
  EXPECT_EQ(last.current, first.current);
  EXPECT_LE(last.peak, first.peak);

  LayerOffload single(device(), config_of(3));
  device().memory().reset_peak();
  run_step(stream(), model, actions, &single, single);
  EXPECT_EQ(usage(device().memory(), "layer buffers").peak, first.current);
}

TEST_P(LayerOffloadTest, RetainedHostMemoryIsMadeInTheFirstStepOnly) {
  const std::vector<PassAction> actions = actions_of("F0 B0 F1 B1");
  const auto host_usage = [&] { return usage(host_ledger(device()), "offloaded activations"); };
  ToyModel model(stream(), kLayers, dtype());
  {
    LayerOffload offload(device(), config_of(3, false, true));
    run_step(stream(), model, actions, &offload, offload, 1);
    const int64_t made = host_usage().current;
    EXPECT_GE(made, 3 * layer_bytes(1, 1));
    EXPECT_EQ(host_usage().peak, made);  // nothing was given back
    for (const uint64_t step : {4, 7, 10}) {
      run_step(stream(), model, actions, &offload, offload, step);
      EXPECT_EQ(host_usage().current, made);
      EXPECT_EQ(host_usage().peak, made);
    }
  }
  EXPECT_EQ(host_usage().current, 0);
  LayerOffload offload(device(), config_of(3));
  run_step(stream(), model, actions, &offload, offload);
  offload.traffic();
  EXPECT_EQ(host_usage().current, 0);
}

TEST_P(LayerOffloadTest, WithoutActivationsNothingMoves) {
  ToyModel model(stream(), kLayers, dtype());
  LayerOffloadConfig config = config_of(2);
  config.activations = false;
  LayerOffload offload(device(), config);
  run_step(stream(), model, actions_of("F0 B0"), &offload, offload);
  EXPECT_TRUE(offload.traffic().empty());
}

// A record of a layer that is not its first saves a tensor of the layer below, which has left.
TEST_P(LayerOffloadTest, ATensorThatIsSavedAgainAfterItLeftIsBroughtBackForBoth) {
  for (const bool double_buffering : {false, true}) {
    LayerOffload offload(device(), config_of(3, double_buffering));
    const std::vector<PassAction> actions = actions_of("F0 B0");
    offload.begin_step(actions, stream());
    Tape tape(Tape::Mode::Record, &offload.policy({0, 0}));
    const Batch batch;
    StepTotals totals;
    Pass pass(stream(), tape, batch, totals, {}, true);
    std::vector<Tensor> saved;
    for (int block = 0; block < kLayers + 2; ++block) {
      offload.before_forward(pass, block);
      saved.push_back(random({40}, static_cast<uint64_t>(block)));
      tape.save(stream(), Label::AttnNorm, {saved.back()});
      if (block >= 2) tape.save(stream(), Label::Mlp, {saved[static_cast<size_t>(block - 2)]});
    }
    std::vector<std::vector<double>> expected;
    for (const Tensor& tensor : saved) expected.push_back(read_back_as_double(stream(), tensor));
    saved.clear();
    tape.forward_done(stream());
    for (size_t block = kLayers + 2; block-- > 0;) {
      if (block >= 2) {
        const auto [lower] = tape.load<1>(stream(), Label::Mlp);
        EXPECT_EQ(read_back_as_double(stream(), lower), expected[block - 2]);
      }
      const auto [own] = tape.load<1>(stream(), Label::AttnNorm);
      EXPECT_EQ(read_back_as_double(stream(), own), expected[block]);
    }
    tape.backward_done(stream());
    // Of blocks 1 to 3, and what the embedding shares with block 2.
    EXPECT_EQ(offload.traffic().at("layer").h2d_bytes,
              4 * 40 * static_cast<int64_t>(size_of(dtype())));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LayerOffloadTest, device_cases(), case_name);

class LayerOffloadRefusals : public CpuTest {};

TEST_F(LayerOffloadRefusals, AtLeastOneLayerStays) {
  EXPECT_THAT([&] { LayerOffload(device(), {4, 4}); }, ThrowsMessage<Error>(HasSubstr("4 of 4")));
  EXPECT_THAT([&] { LayerOffload(device(), {0, 4}); }, ThrowsMessage<Error>(HasSubstr("0 of 4")));
}

TEST_F(LayerOffloadRefusals, OneChunkAndEachMicroBatchOnce) {
  LayerOffload offload(device(), {1, 2});
  const std::vector<PassAction> second_chunk = {{true, {1, 0}}};
  EXPECT_THAT([&] { offload.begin_step(second_chunk, stream()); },
              ThrowsMessage<Error>(HasSubstr("pipeline")));
  offload.policy({0, 0});
  EXPECT_THAT([&] { offload.policy({0, 0}); }, ThrowsMessage<Error>(HasSubstr("forward twice")));
}

}  // namespace
}  // namespace ferry::testing
