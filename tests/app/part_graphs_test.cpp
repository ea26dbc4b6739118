#include "layers/part_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/graphed_training.h"

namespace ferry {
namespace {

using testing::GraphedRanks;
using testing::GraphedRuns;
using testing::kSteps;
using testing::kWarmup;
using testing::train;
using testing::Trained;

using Names = std::vector<std::string>;

RunConfig with_graphs(RunConfig config, const Names& modules) {
  config.cuda_graph.impl = "local";
  config.cuda_graph.modules = modules;
  config.cuda_graph.warmup_steps = kWarmup;
  return config;
}

void expect_same_numbers(const Trained& graphs, const Trained& eager) {
  EXPECT_EQ(graphs.losses, eager.losses);
  EXPECT_EQ(graphs.norms, eager.norms);
  EXPECT_EQ(graphs.gradients, eager.gradients);
  EXPECT_EQ(graphs.weights, eager.weights);
}

// Three layers, four micro-batches a step.
class GraphedParts : public GraphedRuns {
 protected:
  // `num_parts` of each layer are graphs.
  void expect_equal(const RunConfig& config, const Names& modules, int64_t num_parts) {
    SCOPED_TRACE(::testing::PrintToString(modules));
    const Trained eager = train(config, stream().device());
    const Trained graphs = train(with_graphs(config, modules), stream().device());
    EXPECT_EQ(eager.num_part_graphs, 0);
    EXPECT_EQ(graphs.num_part_graphs, 2 * 3 * num_parts) << "one micro-batch is under way";
    EXPECT_EQ(graphs.num_launches, (kSteps - kWarmup) * 4 * graphs.num_part_graphs);
    EXPECT_GT(graphs.num_nodes, 2 * graphs.num_part_graphs);
    expect_same_numbers(graphs, eager);
  }
};

TEST_P(GraphedParts, WholeLayersAreBitEqual) { expect_equal(config(), {}, 1); }

TEST_P(GraphedParts, ModulesAreBitEqual) {
  expect_equal(config(), {"attn"}, 1);
  expect_equal(config(), {"attn", "moe_router", "moe_preprocess"}, 2);
  expect_equal(config({"moe.shared_ffn=32"}), {"attn", "moe"}, 2);
}

TEST_P(GraphedParts, DenseLayersAreBitEqual) {
  expect_equal(config({"moe.layer_freq=[0,0,0]"}), {"attn", "mlp"}, 2);
}

TEST_P(GraphedParts, AreBitEqualWithRecompute) {
  expect_equal(config({"recompute.granularity=selective", "recompute.modules=[layernorm,moe_act]"}),
               {}, 1);
  expect_equal(config({"recompute.granularity=selective", "recompute.modules=[core_attn,moe]"}),
               {"attn", "moe"}, 2);
}

// What the experts save moves, beside graphs of the rest.
TEST_P(GraphedParts, AreBitEqualBesideOffloadOfExperts) {
  for (const std::string delay : {"false", "true"}) {
    SCOPED_TRACE(delay);
    const RunConfig run =
        config({"activation_offload.enabled=true", "activation_offload.min_tensor_elements=64",
                "activation_offload.modules=[expert_fc1,moe_act]"});
    RunConfig delayed = run;
    delayed.activation_offload.delay_until_graph = delay == "true";
    const Trained eager = train(run, stream().device());
    const Trained graphs = train(with_graphs(delayed, {"attn", "moe_router"}), stream().device());
    EXPECT_GT(graphs.num_launches, 0);
    expect_same_numbers(graphs, eager);
    for (const auto& [module, moved] : eager.traffic.back()) {
      EXPECT_GT(moved.d2h_bytes, 0);
      EXPECT_EQ(graphs.traffic.back().at(module).d2h_bytes, moved.d2h_bytes) << module;
      EXPECT_EQ(graphs.traffic.back().at(module).h2d_bytes, moved.h2d_bytes) << module;
    }
  }
}

// What forward saves inside of graphs is not on the tape, and is counted all the same.
TEST_P(GraphedParts, CountTheBytesThatTheyKeep) {
  const Trained eager = train(config(), stream().device());
  const Trained graphs = train(with_graphs(config(), {}), stream().device());
  EXPECT_EQ(graphs.saved_peaks.front(), eager.saved_peaks.front());
  EXPECT_GE(graphs.saved_peaks.back(), eager.saved_peaks.back());
  EXPECT_LT(graphs.saved_peaks.back(), 2 * eager.saved_peaks.back());
}

INSTANTIATE_TEST_SUITE_P(Devices, GraphedParts, testing::device_cases(), testing::case_name);

class GraphedPartsOfRanks : public GraphedRanks {
 protected:
  void expect_equal(const Names& layout, const Names& modules, int ranks) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    const RunConfig config = testing::parallel_run(dir_, layout, ranks);
    const Trained graphs = train(with_graphs(config, modules), ranks);
    EXPECT_GT(graphs.num_launches, 0);
    expect_same_numbers(graphs, train(config, ranks));
  }
};

TEST_F(GraphedPartsOfRanks, AreBitEqualInAPipeline) {
  expect_equal({"parallel.pipeline=2"}, {"attn", "mlp", "moe"}, 2);
  expect_equal({"parallel.pipeline=2", "parallel.virtual_stages=2"}, {"attn", "moe_router"}, 2);
}

TEST_F(GraphedPartsOfRanks, AreBitEqualWithExpertParallelism) {
  expect_equal({"parallel.expert=2"}, {"attn", "mlp", "moe_router"}, 2);
}

TEST_F(GraphedPartsOfRanks, AreBitEqualWithDataParallelOverlap) {
  expect_equal({"optimizer.overlap_grad_reduce=true", "optimizer.overlap_param_gather=true",
                "optimizer.distributed=true"},
               {}, 2);
}

TEST_F(GraphedPartsOfRanks, NewActivationMemoryBeginsWithAWarmUp) {
  const RunConfig config = with_graphs(testing::small_run(dir_), {});
  const auto solo = make_solo_group();
  testing::TrainingRank rank(config, *solo);
  const PartGraphs& graphs = rank.model().model().part_graphs();
  for (int step = 0; step < 3; ++step) rank.step();
  EXPECT_EQ(graphs.num_graphs(), 4) << "two layers";
  rank.model().set_activation_memory(config);
  for (int64_t step = 0; step < kWarmup; ++step) {
    rank.step();
    EXPECT_EQ(graphs.num_graphs(), 0);
  }
  rank.step();
  EXPECT_EQ(graphs.num_graphs(), 4);
}

}  // namespace
}  // namespace ferry
