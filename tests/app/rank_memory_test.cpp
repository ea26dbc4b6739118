#include "app/rank_memory.h"

#include <gtest/gtest.h>

#include "app/model_layout.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry {
namespace {

// What one rank has allocated before its first step.
struct Allocated {
  int pp = 0;
  int64_t weights = 0, gradients = 0, optimizer = 0;
  int64_t host = 0;
  int64_t host_state = 0;  // of the optimizer
  int64_t padding = 0;     // most bytes that the gradients may have beyond their elements
};

int64_t bytes_named(const MemoryLedger& memory, const std::string& name) {
  for (const MemoryLedger::Usage& usage : memory.table())
    if (usage.name == name) return usage.current;
  return 0;
}

std::vector<Allocated> allocate(const RunConfig& config, int ranks) {
  std::vector<Allocated> result(static_cast<size_t>(ranks));
  testing::run_ranks(ranks, [&](Group& world, Control&) {
    testing::TrainingRank rank(config, world);
    Allocated& own = result[static_cast<size_t>(world.rank())];
    own.pp = rank.groups().coordinates().pp;
    const MemoryLedger& memory = rank.device().memory();
    own.weights = bytes_named(memory, "parameters");
    own.gradients = bytes_named(memory, "gradients fp32");
    own.optimizer = bytes_named(memory, "moments fp32") + bytes_named(memory, "moments bf16") +
                    bytes_named(memory, "masters fp32");
    if (HybridDeviceOptimizer* hybrid = rank.model().hybrid_optimizer(); hybrid != nullptr)
      own.host_state = bytes_named(hybrid->host_memory(), "moments fp32") +
                       bytes_named(hybrid->host_memory(), "masters fp32");
    own.host = bytes_named(memory, "offloaded weights");  // of the same device, on the CPU
    for (const Parameter* p : rank.model().parameters()) {
      // Each begins at a multiple of 64 elements and has a row more for every rank at most.
      const int64_t elements = 64 + world.size() * matrix_columns(p->shape);
      own.padding += elements * static_cast<int64_t>(size_of(accumulate_dtype(p->dtype)));
    }
  });
  return result;
}

class RankMemory : public ::testing::Test {
 protected:
  void expect_estimate(const std::vector<std::string>& layout, int ranks) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    const RunConfig config = testing::parallel_run(dir_, layout, ranks);
    const std::vector<MemoryEstimate> stages = stage_memories(config, ranks);
    ASSERT_EQ(std::ssize(stages), config.parallel.pipeline);
    std::vector<int64_t> largest(stages.size());
    for (const Allocated& own : allocate(config, ranks)) {
      const auto pp = static_cast<size_t>(own.pp);
      EXPECT_EQ(own.weights, stages[pp].weights) << "stage " << pp;
      EXPECT_GE(own.gradients, stages[pp].gradients) << "stage " << pp;
      EXPECT_LE(own.gradients, stages[pp].gradients + own.padding) << "stage " << pp;
      // A rank may own fewer rows than the first one.
      EXPECT_LE(own.optimizer, stages[pp].optimizer) << "stage " << pp;
      largest[pp] = std::max(largest[pp], own.optimizer);
    }
    // The first stage may own one row more of the tied weight than the last one.
    const bool tied = config.model.tie_embeddings && stages.size() > 1;
    const int64_t row = 3 * config.model.hidden * 4;
    for (size_t pp = 0; pp < stages.size(); ++pp)
      EXPECT_GE(largest[pp] + (tied && pp + 1 == stages.size() ? row : 0), stages[pp].optimizer)
          << "stage " << pp;
  }

  testing::TempDir dir_;
};

TEST_F(RankMemory, WeightsGradientsAndOptimizerAreWhatEachRankAllocates) {
  for (const char* precision : {"model.precision=bf16", "model.precision=fp32"}) {
    expect_estimate({precision}, 1);
    for (std::vector<std::string> layout : testing::layouts_of_four()) {
      layout.emplace_back(precision);
      expect_estimate(layout, 4);
    }
  }
}

// The first rank of a stage owns most rows, so its part is what is counted exactly.
TEST_F(RankMemory, OptimizerStateIsSplitAsEachRankSplitsIt) {
  const auto expect = [&](std::vector<std::string> overrides, int ranks) {
    overrides.emplace_back("optimizer.offload.enabled=true");
    SCOPED_TRACE(::testing::PrintToString(overrides));
    const RunConfig config = testing::parallel_run(dir_, overrides, ranks);
    const MemoryEstimate memory = stage_memory(config, ranks, 0);
    const Allocated own = allocate(config, ranks)[0];
    EXPECT_EQ(own.weights, memory.weights);
    EXPECT_EQ(own.optimizer, memory.optimizer);
    EXPECT_EQ(own.host_state, memory.optimizer_bytes.host_state());
    return memory;
  };
  for (const char* precision : {"model.precision=bf16", "model.precision=fp32"}) {
    for (const char* fraction : {"0", "0.3", "0.5", "1", "auto"})
      expect({precision, concat("optimizer.offload.fraction=", fraction)}, 1);
    expect({precision, "optimizer.offload.fraction=0.5", "optimizer.offload.take=last"}, 1);
    expect({precision, "optimizer.offload.fraction=0.5", "optimizer.name=sgd"}, 1);
  }
  expect({"model.precision=bf16", "optimizer.offload.fraction=0.5",
          "optimizer.precision_aware=true", "optimizer.exp_avg_sq_dtype=bf16"},
         1);
  int64_t num_split = 0;
  for (const std::vector<std::string>& layout : testing::layouts_of_four()) {
    std::vector<std::string> overrides = layout;
    overrides.insert(overrides.end(), {"model.precision=bf16", "optimizer.offload.fraction=0.4"});
    const MemoryEstimate memory = expect(overrides, 4);
    EXPECT_GT(memory.optimizer_bytes.host_state(), 0);
    num_split += memory.optimizer > 0 ? 1 : 0;
  }
  EXPECT_EQ(num_split, std::ssize(testing::layouts_of_four()) - 1)
      << "one first stage has a single parameter, the embedding";
}

TEST_F(RankMemory, BytesOfAParameterByPrecision) {
  const auto expect = [&](const char* precision, int64_t weights, int64_t grads,
                          int64_t optimizer) {
    const RunConfig config = testing::parallel_run(dir_, {concat("model.precision=", precision)});
    const MemoryEstimate bytes = stage_memory(config, 1, 0);
    const ParameterCount count = count_parameters(config.gpt());
    const int64_t others = count.total() - count.router;  // the router is never bf16
    const bool fp64 = std::string(precision) == "fp64";
    EXPECT_EQ(bytes.weights, weights * others + (fp64 ? 8 : 4) * count.router) << precision;
    EXPECT_EQ(bytes.gradients, grads * count.total()) << precision;
    EXPECT_EQ(bytes.optimizer, optimizer * others + (fp64 ? 16 : 8) * count.router) << precision;
  };
  expect("bf16", 2, 4, 12);  // a master weight and two moments
  expect("fp32", 4, 4, 8);   // the weight is its own master
  expect("fp64", 8, 8, 16);
}

TEST_F(RankMemory, ActivationsAreOfAllMicroBatchesUnderWay) {
  const auto stages = [&](std::vector<std::string> layout, int64_t ranks = 4) {
    layout.emplace_back("batch.global=16");
    return stage_memories(testing::parallel_run(dir_, layout, ranks), ranks);
  };
  const auto activations_of_layers = [&](int64_t first, int64_t count, bool head) {
    const RunConfig config = testing::parallel_run(dir_);
    int64_t bytes = 0;
    for (const auto& [label, cost] : kept_costs(pass_records(
             config.gpt(), {false, first, count, head}, config.batch.micro * config.model.seq)))
      bytes += cost.bytes_per_token;
    return bytes;
  };
  const auto four = stages({"parallel.pipeline=4"});
  ASSERT_EQ(four.size(), 4u);
  for (int pp = 0; pp < 4; ++pp)  // 1F1B: 4, 3, 2, 1
    EXPECT_EQ(four[static_cast<size_t>(pp)].activations,
              (4 - pp) * activations_of_layers(pp, 1, pp == 3));
  EXPECT_EQ(four[0].logits, 0);
  EXPECT_GT(four[3].logits, 0);
  // Fewer micro-batches than stages: no more than there are.
  EXPECT_EQ(
      stage_memory(testing::parallel_run(dir_, {"parallel.pipeline=4", "batch.global=4"}, 4), 4, 0)
          .activations,
      2 * activations_of_layers(0, 1, false));
  // On one rank a micro-batch is done before the next begins.
  EXPECT_EQ(stages({}, 1)[0].activations, activations_of_layers(0, 4, true));
}

// Of the layers whose weights wait on the host, two are on the device at a time.
TEST_F(RankMemory, WeightsOfOffloadedLayers) {
  RunConfig config = testing::parallel_run(dir_, {"model.precision=bf16"});
  config.layer_offload.activations = false;
  const MemoryEstimate all = stage_memory(config, 1, 0);
  config.layer_offload.weights = true;
  const auto memory = [&](int64_t layers) {
    config.layer_offload.layers = layers;
    return stage_memory(config, 1, 0);
  };
  EXPECT_EQ(memory(0).weights, all.weights);
  EXPECT_EQ(memory(0).host, 0);
  EXPECT_EQ(memory(2).weights, all.weights) << "both may be there";
  const int64_t dense = memory(1).host, with_experts = memory(2).host - dense;
  EXPECT_GT(dense, 0);
  EXPECT_GT(with_experts, dense);
  EXPECT_EQ(memory(3).weights, all.weights - dense);
  EXPECT_EQ(memory(3).host, dense + 2 * with_experts);
  EXPECT_EQ(memory(3).optimizer, all.optimizer);
  EXPECT_EQ(allocate(config, 1)[0].host, memory(3).host);
}

// The update has the weights of all layers on the device, when there are no activations.
TEST_F(RankMemory, WeightsThatTheUpdateNeeds) {
  RunConfig config = testing::parallel_run(
      dir_, {"model.precision=bf16", "model.layers=24", "moe.layer_freq=1", "moe.ffn=32768"});
  const MemoryEstimate all = stage_memory(config, 1, 0);
  config.layer_offload.layers = 23;
  config.layer_offload.weights = true;
  const MemoryEstimate moving = stage_memory(config, 1, 0);
  ASSERT_LT(moving.activations + moving.logits + moving.workspace, all.weights);
  EXPECT_EQ(moving.total(), all.weights + all.gradients + all.optimizer);
}

// A weight that is its own master stays on the device; the router's always is.
TEST_F(RankMemory, MastersDoNotMove) {
  RunConfig config = testing::parallel_run(dir_, {"model.precision=fp32"});
  const MemoryEstimate all = stage_memory(config, 1, 0);
  config.layer_offload.layers = 3;
  config.layer_offload.activations = false;
  config.layer_offload.weights = true;
  EXPECT_EQ(stage_memory(config, 1, 0).weights, all.weights);
  EXPECT_EQ(stage_memory(config, 1, 0).host, 0);
}

TEST_F(RankMemory, ATotalIsTheSumOfItsParts) {
  const MemoryEstimate memory = stage_memory(testing::parallel_run(dir_), 1, 0);
  EXPECT_EQ(memory.total(), memory.weights + memory.gradients + memory.optimizer +
                                memory.activations + memory.copies + memory.stash + memory.logits +
                                memory.workspace);
}

// Saves beside training hold the state that a rank stores a second time: on the device's side from
// the start, on the host's as it changes, with a limit of its own.
TEST_F(RankMemory, SavesBesideTrainingTakeHostMemory) {
  const auto memory = [&](const std::vector<std::string>& more, int ranks = 1) {
    std::vector<std::string> overrides = {"model.precision=bf16", "checkpoint.every=10"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return stage_memory(testing::parallel_run(dir_, overrides, ranks), ranks, 0);
  };
  const int64_t parameters = count_parameters(testing::parallel_run(dir_).gpt()).total();
  const auto expect = [](const MemoryEstimate& own, int64_t staging, int64_t copies) {
    EXPECT_EQ(own.save_staging, staging);
    EXPECT_EQ(own.save_copies, copies);
    EXPECT_EQ(own.on_host(), own.host + own.pageable + staging + copies);
  };
  expect(memory({}), 12 * parameters, 0);
  expect(memory({"optimizer.name=sgd"}), 8 * parameters, 0);
  expect(memory({"checkpoint.async=false"}), 0, 0);
  expect(memory({"checkpoint.every=0"}), 0, 0);
  const auto on_host = [&](const char* fraction, const char* copy_gib) {
    return memory({"optimizer.offload.enabled=true",
                   concat("optimizer.offload.fraction=", fraction),
                   concat("checkpoint.copy_gib=", copy_gib)});
  };
  expect(on_host("1", "0"), 0, 12 * parameters);
  expect(on_host("1", "1e-6"), 0, 1074);
  expect(on_host("1", "1"), 0, 12 * parameters);
  expect(on_host("auto", "1e-6"), 0, 12 * parameters);
  const MemoryEstimate half = on_host("0.5", "0");
  EXPECT_GT(half.save_staging, 0);
  EXPECT_EQ(half.save_copies, half.optimizer_bytes.host_state());
  EXPECT_EQ(half.save_staging + half.save_copies, 12 * parameters);
  // Ranks share what they store, also where each of them has all of it.
  for (const char* distributed : {"true", "false"})
    EXPECT_LT(memory({concat("optimizer.distributed=", distributed)}, 4).save_staging,
              12 * parameters / 3)
        << distributed;
}

}  // namespace
}  // namespace ferry
