#include "app/graphed_micro_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"
#include "tests/support/devices.h"

namespace ferry {
namespace {

using testing::TrainingRank;

constexpr int kSteps = 6;
constexpr int64_t kWarmup = 2;

// A user cannot ask for graphs on the CPU; there they are the same calls at each launch.
RunConfig with_graphs(RunConfig config) {
  config.cuda_graph.impl = "full_iteration";
  config.cuda_graph.warmup_steps = kWarmup;
  return config;
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<int64_t> saved_peaks;
  std::map<std::string, std::vector<double>> gradients, weights;
  int64_t num_launches = 0;
  int64_t num_nodes = 0;
};

// What one rank on `device` makes of six steps.
Trained train(const RunConfig& config, Device& device) {
  const auto stream = device.make_stream("compute");
  const auto solo = make_solo_group();
  const MeshGroups groups(Mesh(1, mesh_sizes(config.parallel)), *solo);
  TrainModel model(config, *stream, groups);
  Loader loader(open_dataset(training_data_spec(config, 1)), loader_config(config, groups));
  BatchFeed feed(*stream, loader);
  Trained trained;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const int64_t first = loader.consumed_samples();
    model.begin_step();
    const ParallelModel::Input input = model.forward_backward(feed, first, step);
    model.finish_backward();
    trained.losses.push_back(read_total(*stream, model.totals(), "loss"));
    trained.norms.push_back(model.gradient_norm(input.num_loss_tokens));
    trained.saved_peaks.push_back(model.activation_memory().saved_bytes().peak());
    if (step == kSteps)
      for (const Parameter* p : model.parameters())
        trained.gradients[p->name] = read_back_as_double(*stream, p->grad);
    model.update(step, input.num_loss_tokens, trained.norms.back());
  }
  for (const Parameter* p : model.parameters())
    trained.weights[p->name] = read_back_as_double(*stream, p->value);
  if (const GraphedMicroBatch* graphed = model.model().graph()) {
    trained.num_launches = graphed->num_launches();
    trained.num_nodes = graphed->graph()->num_nodes();
  }
  return trained;
}

void expect_same_bits(const Trained& graphs, const Trained& eager) {
  EXPECT_EQ(graphs.losses, eager.losses);
  EXPECT_EQ(graphs.norms, eager.norms);
  EXPECT_EQ(graphs.saved_peaks, eager.saved_peaks);
  EXPECT_EQ(graphs.gradients, eager.gradients);
  EXPECT_EQ(graphs.weights, eager.weights);
}

class GraphedTraining : public testing::DeviceTest {
 protected:
  // Three layers with experts, four micro-batches a step.
  RunConfig config(std::vector<std::string> more = {}) {
    const std::map<DType, std::string> precisions = {
        {DType::F32, "fp32"}, {DType::F64, "fp64"}, {DType::BF16, "bf16"}};
    std::vector<std::string> overrides = {"model.precision=" + precisions.at(GetParam().dtype),
                                          "model.layers=3",
                                          "moe.layer_freq=[1,1,1]",
                                          "model.hidden=64",
                                          "model.head_dim=32",
                                          "moe.ffn=64",
                                          "model.qk_norm=head",
                                          "moe.router.z_coeff=1e-3",
                                          "run.deterministic=true"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return testing::small_run(dir_, overrides);
  }
  void expect_equal(const RunConfig& config) {
    const Trained eager = train(config, stream().device());
    const Trained graphs = train(with_graphs(config), stream().device());
    EXPECT_EQ(eager.num_launches, 0);
    EXPECT_EQ(graphs.num_launches, (kSteps - kWarmup) * 4);
    if (GetParam().kind == DeviceKind::Cuda) {
      EXPECT_GT(graphs.num_nodes, 100);
    }
    EXPECT_GT(eager.saved_peaks.back(), 0);
    expect_same_bits(graphs, eager);
  }

  testing::TempDir dir_;
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

INSTANTIATE_TEST_SUITE_P(Devices, GraphedTraining, testing::device_cases(), testing::case_name);

// The layouts and parts that a graph leaves some of its step to.
class GraphedRanks : public ::testing::Test {
 protected:
  Trained train(const RunConfig& config, int ranks) {
    Trained trained;
    testing::Assembly weights;
    testing::run_ranks(ranks, [&](Group& world, Control&) {
      TrainingRank rank(config, world);
      for (int step = 0; step < kSteps; ++step) {
        const testing::StepNumbers numbers = rank.step();
        if (world.rank() > 0) continue;
        trained.losses.push_back(numbers.loss);
        trained.norms.push_back(numbers.norm);
      }
      weights.add_values(rank);
      if (world.rank() == 0 && rank.model().model().graph() != nullptr)
        trained.num_launches = rank.model().model().graph()->num_launches();
    });
    trained.weights = weights.whole();
    return trained;
  }
  void expect_equal(const RunConfig& config, int ranks, int64_t launches) {
    const Trained graphs = train(with_graphs(config), ranks);
    EXPECT_EQ(graphs.num_launches, launches);
    expect_same_bits(graphs, train(config, ranks));
  }

  testing::TempDir dir_;
};

TEST_F(GraphedRanks, TheLastMicroBatchOverlapsTheReductionOfGradients) {
  for (const std::string distributed : {"true", "false"})
    expect_equal(testing::parallel_run(dir_,
                                       {"optimizer.overlap_grad_reduce=true",
                                        "optimizer.overlap_param_gather=" + distributed,
                                        "optimizer.distributed=" + distributed},
                                       2),
                 2, kSteps - kWarmup);
}

TEST_F(GraphedRanks, WithoutOverlapAllMicroBatchesAreGraphs) {
  expect_equal(testing::parallel_run(dir_, {"optimizer.overlap_grad_reduce=false"}, 2), 2,
               2 * (kSteps - kWarmup));
}

TEST_F(GraphedRanks, TheOnlyMicroBatchIsAGraph) {
  expect_equal(testing::parallel_run(dir_, {"optimizer.overlap_grad_reduce=true"}, 4), 4,
               kSteps - kWarmup);
}

TEST_F(GraphedRanks, TheHostsPartOfTheOptimizerHearsOfTheLastMicroBatch) {
  expect_equal(testing::small_run(
                   dir_, {"optimizer.offload.enabled=true", "optimizer.offload.fraction=0.5"}),
               1, 3 * (kSteps - kWarmup));
}

TEST_F(GraphedRanks, NewActivationMemoryBeginsWithAWarmUp) {
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
  EXPECT_TRUE(graphed.run(stream(), batch(0, 32), context_));
  const double first = loss();
  EXPECT_GT(first, 0);
  EXPECT_FALSE(graphed.run(stream(), batch(0, 31), context_));
  EXPECT_EQ(loss(), first) << "nothing was enqueued";
  EXPECT_TRUE(graphed.run(stream(), batch(7, 32), context_));
  EXPECT_NE(loss(), 2 * first) << "other tokens";
  stream().zero(totals_.all().at("loss"));
  EXPECT_TRUE(graphed.run(stream(), batch(0, 32), context_));
  EXPECT_EQ(loss(), first);
  EXPECT_EQ(graphed.num_launches(), 3);
}

TEST_F(GraphedMicroBatchTest, OtherSizesAreNotReplayed) {
  GraphedMicroBatch graphed(model_);
  EXPECT_TRUE(graphed.run(stream(), batch(0, 32), context_));
  Batch other = batch(0, 32);
  other.batch = 4;
  other.seq = 8;
  EXPECT_FALSE(graphed.run(stream(), other, context_));
}

TEST_F(GraphedMicroBatchTest, EvaluationIsOurBug) {
  GraphedMicroBatch graphed(model_);
  EXPECT_THAT(
      [&] {
        graphed.run(stream(), batch(0, 32), {totals_, {}, 0, false});
      },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("evaluation is not recorded")));
}

}  // namespace
}  // namespace ferry
