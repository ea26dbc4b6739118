#pragma once

// Runs of six steps with CUDA graphs and without, and all they leave behind.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"
#include "tests/support/devices.h"

namespace ferry::testing {

constexpr int kSteps = 6;
constexpr int64_t kWarmup = 2;

struct Trained {
  std::vector<double> losses, norms;
  std::vector<TrafficByModule> traffic;
  std::vector<int64_t> saved_peaks;
  std::map<std::string, std::vector<double>> gradients, weights;
  int64_t num_launches = 0;
  int64_t num_nodes = 0;
  int64_t num_part_graphs = 0;

  void take_graphs(ParallelModel& model) {
    if (const GraphedMicroBatch* graphed = model.graph()) {
      num_launches = graphed->num_launches();
      num_nodes = graphed->graph()->num_nodes();
    } else {
      num_launches = model.part_graphs().num_launches();
      num_nodes = model.part_graphs().num_nodes();
      num_part_graphs = model.part_graphs().num_graphs();
    }
  }
};

/// What one rank on `device` makes of six steps.
inline Trained train(const RunConfig& config, Device& device) {
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
    trained.traffic.push_back(model.activation_memory().traffic());
    if (step == kSteps)
      for (const Parameter* p : model.parameters())
        trained.gradients[p->name] = read_back_as_double(*stream, p->grad);
    model.update(step, input.num_loss_tokens, trained.norms.back());
  }
  for (const Parameter* p : model.parameters())
    trained.weights[p->name] = read_back_as_double(*stream, p->value);
  trained.take_graphs(model.model());
  return trained;
}

inline void expect_same_bits(const Trained& graphs, const Trained& eager) {
  EXPECT_EQ(graphs.losses, eager.losses);
  EXPECT_EQ(graphs.norms, eager.norms);
  EXPECT_EQ(graphs.saved_peaks, eager.saved_peaks);
  EXPECT_EQ(graphs.gradients, eager.gradients);
  EXPECT_EQ(graphs.weights, eager.weights);
}

class GraphedRuns : public DeviceTest {
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
    return small_run(dir_, overrides);
  }
  TempDir dir_;
};

class GraphedRanks : public ::testing::Test {
 protected:
  Trained train(const RunConfig& config, int ranks) {
    Trained trained;
    Assembly weights;
    run_ranks(ranks, [&](Group& world, Control&) {
      TrainingRank rank(config, world);
      for (int step = 0; step < kSteps; ++step) {
        const StepNumbers numbers = rank.step();
        if (world.rank() > 0) continue;
        trained.losses.push_back(numbers.loss);
        trained.norms.push_back(numbers.norm);
      }
      weights.add_values(rank);
      if (world.rank() == 0) trained.take_graphs(rank.model().model());
    });
    trained.weights = weights.whole();
    return trained;
  }
  TempDir dir_;
};

}  // namespace ferry::testing
