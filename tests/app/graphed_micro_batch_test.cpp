#include "app/graphed_micro_batch.h"

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
using testing::TrainingRank;

// A user cannot ask for graphs on the CPU; there they are lists of tasks.
RunConfig with_graphs(RunConfig config) {
  config.cuda_graph.impl = "full_iteration";
  config.cuda_graph.warmup_steps = kWarmup;
  return config;
}

class GraphedTraining : public GraphedRuns {
 protected:
  void expect_equal(const RunConfig& config) {
    const Trained eager = train(config, stream().device());
    const Trained graphs = train(with_graphs(config), stream().device());
    EXPECT_EQ(eager.num_launches, 0);
    EXPECT_EQ(graphs.num_launches, (kSteps - kWarmup) * 4);
    EXPECT_GT(graphs.num_nodes, 100);
    EXPECT_GT(eager.saved_peaks.back(), 0);
    expect_same_bits(graphs, eager);
  }
};

TEST_P(GraphedTraining, IsBitEqual) { expect_equal(config()); }

TEST_P(GraphedTraining, IsBitEqualWithSelectiveRecompute) {
  expect_equal(config(
      {"recompute.granularity=selective", "recompute.modules=[layernorm,core_attn,moe_act]"}));
}

TEST_P(GraphedTraining, IsBitEqualWithFullRecompute) {
  expect_equal(
      config({"recompute.granularity=full", "recompute.method=uniform", "recompute.num_layers=1"}));
}

// Copies to the host and back are inside the graph.
class GraphedOffload : public GraphedRuns {
 protected:
  void expect_equal(const std::vector<std::string>& more, bool same_bytes = true) {
    std::vector<std::string> overrides = {
        "activation_offload.enabled=true", "activation_offload.min_tensor_elements=1",
        "activation_offload.modules=[attn_norm,qkv_linear,core_attn,attn_proj,mlp_norm,expert_fc1,"
        "moe_act]"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const RunConfig run = config(overrides);
    const Trained eager = train(run, stream().device());
    const Trained graphs = train(with_graphs(run), stream().device());
    EXPECT_EQ(graphs.num_launches, (kSteps - kWarmup) * 4);
    EXPECT_EQ(graphs.losses, eager.losses);
    EXPECT_EQ(graphs.norms, eager.norms);
    EXPECT_EQ(graphs.gradients, eager.gradients);
    EXPECT_EQ(graphs.weights, eager.weights);
    if (!same_bytes) return;
    // Each launch moves what a pass that is not recorded moves.
    ASSERT_FALSE(eager.traffic.back().empty());
    ASSERT_EQ(graphs.traffic.back().size(), eager.traffic.back().size());
    for (const auto& [module, moved] : eager.traffic.back()) {
      SCOPED_TRACE(module);
      EXPECT_GT(moved.d2h_bytes, 0);
      EXPECT_EQ(graphs.traffic.back().at(module).d2h_bytes, moved.d2h_bytes);
      EXPECT_EQ(graphs.traffic.back().at(module).h2d_bytes, moved.h2d_bytes);
    }
  }
};

TEST_P(GraphedOffload, IsBitEqual) { expect_equal({"activation_offload.max_inflight=2"}); }

TEST_P(GraphedOffload, IsBitEqualWhenEachCopyIsWaitedFor) {
  expect_equal({"activation_offload.max_inflight=0"});
}

TEST_P(GraphedOffload, IsBitEqualWithRecompute) {
  expect_equal({"activation_offload.max_inflight=1", "recompute.granularity=selective",
                "recompute.modules=[layernorm,moe_act]",
                "activation_offload.modules=[core_attn,attn_proj]"});
}

TEST_P(GraphedOffload, AFractionMovesWhatTheRecordedPassMoves) {
  expect_equal({"activation_offload.max_inflight=1", "activation_offload.fraction=0.5"}, false);
}

TEST_P(GraphedOffload, AnAutomaticBudgetIsChosenFirst) {
  RunConfig run = with_graphs(
      config({"activation_offload.enabled=true", "activation_offload.min_tensor_elements=1",
              "activation_offload.auto_budget=1.0", "activation_offload.max_inflight=2"}));
  run.cuda_graph.warmup_steps = 1;
  const Trained eager = train(config(), stream().device());
  const Trained graphs = train(run, stream().device());
  // One step is measured and one timed, whatever the warm-up.
  EXPECT_EQ(graphs.num_launches, (kSteps - 2) * 4);
  EXPECT_EQ(graphs.losses, eager.losses);
  EXPECT_EQ(graphs.weights, eager.weights);
}

INSTANTIATE_TEST_SUITE_P(Devices, GraphedTraining, testing::device_cases(), testing::case_name);
INSTANTIATE_TEST_SUITE_P(Devices, GraphedOffload, testing::device_cases(), testing::case_name);

// The layouts and parts that a graph leaves some of its step to.
class GraphedMicroBatchOfRanks : public GraphedRanks {
 protected:
  void expect_equal(const RunConfig& config, int ranks, int64_t launches) {
    const Trained graphs = train(with_graphs(config), ranks);
    EXPECT_EQ(graphs.num_launches, launches);
    expect_same_bits(graphs, train(config, ranks));
  }
};

TEST_F(GraphedMicroBatchOfRanks, TheLastMicroBatchOverlapsTheReductionOfGradients) {
  for (const std::string distributed : {"true", "false"})
    expect_equal(testing::parallel_run(dir_,
                                       {"optimizer.overlap_grad_reduce=true",
                                        "optimizer.overlap_param_gather=" + distributed,
                                        "optimizer.distributed=" + distributed},
                                       2),
                 2, kSteps - kWarmup);
}

TEST_F(GraphedMicroBatchOfRanks, WithoutOverlapAllMicroBatchesAreGraphs) {
  expect_equal(testing::parallel_run(dir_, {"optimizer.overlap_grad_reduce=false"}, 2), 2,
               2 * (kSteps - kWarmup));
}

TEST_F(GraphedMicroBatchOfRanks, TheOnlyMicroBatchIsAGraph) {
  expect_equal(testing::parallel_run(dir_, {"optimizer.overlap_grad_reduce=true"}, 4), 4,
               kSteps - kWarmup);
}

TEST_F(GraphedMicroBatchOfRanks, TheHostsPartOfTheOptimizerHearsOfTheLastMicroBatch) {
  expect_equal(testing::small_run(
                   dir_, {"optimizer.offload.enabled=true", "optimizer.offload.fraction=0.5"}),
               1, 3 * (kSteps - kWarmup));
}

TEST_F(GraphedMicroBatchOfRanks, TheLastMicroBatchOffloadsOutsideOfTheGraph) {
  expect_equal(
      testing::small_run(
          dir_, {"optimizer.offload.enabled=true", "activation_offload.enabled=true",
                 "activation_offload.modules=[core_attn,expert_fc1]",
                 "activation_offload.min_tensor_elements=1", "activation_offload.max_inflight=1"}),
      1, 3 * (kSteps - kWarmup));
}

TEST_F(GraphedMicroBatchOfRanks, NewActivationMemoryBeginsWithAWarmUp) {
  const RunConfig config = with_graphs(testing::small_run(dir_));
  const auto solo = make_solo_group();
  TrainingRank rank(config, *solo);
  for (int step = 0; step < 3; ++step) rank.step();
  ASSERT_NE(rank.model().model().graph(), nullptr);
  rank.model().set_activation_memory(config);
  for (int64_t step = 0; step < kWarmup; ++step) {
    rank.step();
    EXPECT_EQ(rank.model().model().graph(), nullptr);
  }
  rank.step();
  ASSERT_NE(rank.model().model().graph(), nullptr);
  EXPECT_EQ(rank.model().model().graph()->num_launches(), 4);
}

// A model, and batches by hand.
class GraphedMicroBatchTest : public testing::CpuTest {
 protected:
  GraphedMicroBatchTest() {
    model_.initialise(stream(), 1);
    model_.visit([&](Parameter& p) {
      p.grad = Tensor::empty(stream(), "gradients", p.shape, accumulate_dtype(p.dtype));
      stream().zero(p.grad);
    });
  }
  Batch batch(int32_t first, int64_t num_loss_tokens) {
    const int64_t size = 2 * config_.model.seq;
    std::vector<int32_t> tokens(static_cast<size_t>(size));
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = (first + static_cast<int32_t>(i)) % static_cast<int32_t>(config_.model.vocab);
    std::vector<float> mask(tokens.size(), 0);
    std::fill_n(mask.begin(), num_loss_tokens, 1.0f);
    Batch batch;
    batch.batch = 2;
    batch.seq = config_.model.seq;
    batch.tokens = from_host(stream(), "batch", tokens, {size});
    batch.labels = batch.tokens;
    batch.loss_mask = from_host(stream(), "batch", mask, {size});
    batch.num_loss_tokens = num_loss_tokens;
    return batch;
  }
  double loss() { return read_total(stream(), totals_, "loss"); }

  testing::TempDir dir_;
  const RunConfig config_ = testing::small_run(dir_);
  Gpt model_{config_.gpt(), "none", 1, ModelAxes{}, whole_model(config_.gpt())};
  StepTotals totals_;
  const StepContext context_{totals_, {}, 0, true};
};

TEST_F(GraphedMicroBatchTest, ReplaysOnlyMicroBatchesWithAsManyLabels) {
  GraphedMicroBatch graphed(model_);
  EXPECT_EQ(graphed.graph(), nullptr);
  EXPECT_TRUE(graphed.run(stream(), batch(0, 32), 0, context_));
  const double first = loss();
  EXPECT_GT(first, 0);
  EXPECT_FALSE(graphed.run(stream(), batch(0, 31), 0, context_));
  EXPECT_EQ(loss(), first) << "nothing was enqueued";
  EXPECT_TRUE(graphed.run(stream(), batch(7, 32), 0, context_));
  EXPECT_NE(loss(), 2 * first) << "other tokens";
  stream().zero(totals_.all().at("loss"));
  EXPECT_TRUE(graphed.run(stream(), batch(0, 32), 0, context_));
  EXPECT_EQ(loss(), first);
  EXPECT_EQ(graphed.num_launches(), 3);
}

TEST_F(GraphedMicroBatchTest, OtherSizesAreNotReplayed) {
  GraphedMicroBatch graphed(model_);
  EXPECT_TRUE(graphed.run(stream(), batch(0, 32), 0, context_));
  Batch other = batch(0, 32);
  other.batch = 4;
  other.seq = 8;
  EXPECT_FALSE(graphed.run(stream(), other, 0, context_));
}

TEST_F(GraphedMicroBatchTest, EvaluationIsOurBug) {
  GraphedMicroBatch graphed(model_);
  EXPECT_THAT(
      [&] {
        graphed.run(stream(), batch(0, 32), 0, {totals_, {}, 0, false});
      },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("evaluation is not recorded")));
}

}  // namespace
}  // namespace ferry
