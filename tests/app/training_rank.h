#pragma once

// One rank of a training job, a thread among others: what ferry train makes of a configuration, but
// without a run directory.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "app/data_spec.h"
#include "app/host_sum.h"
#include "app/train_model.h"
#include "core/host_copy.h"
#include "tests/support/expect_close.h"
#include "tests/support/placed_values.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {

/// What a step gives, over all ranks.
struct StepNumbers {
  double loss = 0;  // sum over tokens
  double norm = 0;
  double lr = 0;
};

class TrainingRank {
 public:
  TrainingRank(const RunConfig& config, Group& world)
      : config_(config),
        device_(make_cpu_device()),
        stream_(poisoned(*device_).make_stream("compute")),
        groups_(Mesh(world.size(), mesh_sizes(config.parallel)), world),
        model_(config_, *stream_, groups_) {}

  /// Steps and data go on as after `num_steps`, whose state was loaded. Before the first step.
  void go_on_after(int64_t num_steps) { num_steps_ = num_steps; }
  /// Forward, backward and reduction of the next step; again, without limits, if one was exceeded.
  ParallelModel::Input passes() {
    if (!loader_) {
      LoaderConfig data = loader_config(config_, groups_);
      data.consumed_samples = num_steps_ * data.global;
      loader_ = std::make_unique<Loader>(
          open_dataset(training_data_spec(config_, groups_.mesh().world())), data);
    }
    const int64_t first = loader_->consumed_samples();
    BatchFeed feed(*stream_, *loader_, model_.has_limits());
    ++num_steps_;
    const auto run = [&] {
      model_.begin_step();
      const ParallelModel::Input input = model_.forward_backward(feed, first, num_steps_);
      model_.finish_backward();
      return input;
    };
    const ParallelModel::Input input = run();
    if (!model_.has_limits() || !model_.exceeded().worthless()) return input;
    ++num_again_;
    feed.rewind();
    model_.set_limits(false);
    const ParallelModel::Input again = run();
    model_.set_limits(true);
    return again;
  }
  StepNumbers step() {
    const ParallelModel::Input input = passes();
    std::vector<double> sums{read_total(*stream_, model_.totals(), "loss"), input.num_loss_tokens};
    sum_over_ranks(sums, groups_.world(), *stream_);
    StepNumbers numbers;
    numbers.loss = sums[0];
    numbers.norm = model_.gradient_norm(sums[1]);
    numbers.lr = model_.update(num_steps_, sums[1], numbers.norm);
    return numbers;
  }

  /// Steps whose passes were made twice.
  int64_t num_again() const { return num_again_; }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  TrainModel& model() { return model_; }
  const MeshGroups& groups() const { return groups_; }

 private:
  static Device& poisoned(Device& device) {
    device.set_poison_memory(true);
    return device;
  }

  RunConfig config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  MeshGroups groups_;
  TrainModel model_;
  std::unique_ptr<Loader> loader_;
  int64_t num_steps_ = 0;
  int64_t num_again_ = 0;
};

/// Tensors put together from the parts of all ranks, which call it from their threads.
class Assembly {
 public:
  /// Expects what another rank has given already to be the same bits.
  void add(const std::string& name, const std::vector<double>& part, const Placement& placement) {
    const std::lock_guard lock(mutex_);
    const auto size = static_cast<size_t>(placement.global_shape().numel());
    std::vector<double>& values = whole_[name];
    std::vector<int>& times = times_[name];
    values.resize(size);
    times.resize(size);
    for_each_placed(placement, [&](size_t global, size_t local) {
      if (times[global]++ > 0) {
        EXPECT_EQ(values[global], part.at(local)) << name << ' ' << global;
      }
      values[global] = part.at(local);
    });
  }
  /// The weights that a rank computes with.
  void add_values(TrainingRank& rank) {
    rank.model().finish_update();
    for (const Parameter* parameter : rank.model().parameters())
      add(parameter->name, read_back_as_double(rank.stream(), parameter->value),
          parameter->placement());
  }
  /// Masters and moments that a rank stores, as "master NAME", "exp_avg NAME" and so on.
  void add_state(TrainingRank& rank) {
    rank.model().finish_update();
    for (const StoredRows& rows : rank.model().stored_rows()) {
      const ParameterState& state = rank.model().store().state(*rows.parameter);
      const Placement placement = rows.parameter->placement().rows(rows.begin, rows.end);
      const int64_t columns = placement.num_columns();
      const auto add_rows = [&](std::string_view kind, const Tensor& tensor) {
        const std::vector<double> all = read_back_as_double(rank.stream(), tensor);
        add(concat(kind, ' ', rows.parameter->name),
            {all.begin() + rows.begin * columns, all.begin() + rows.end * columns}, placement);
      };
      add_rows("master", state.master);
      for (size_t i = 0; i < state.moments.size(); ++i)
        add_rows(rank.model().rule().moment_names()[i], state.moments[i]);
    }
  }

  /// Expects that every element was given.
  const std::map<std::string, std::vector<double>>& whole() const {
    for (const auto& [name, times] : times_)
      EXPECT_EQ(std::count(times.begin(), times.end(), 0), 0) << name << " is not complete";
    return whole_;
  }
  void expect_each_once() const {
    for (const auto& [name, times] : times_)
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), std::ssize(times)) << name;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<double>> whole_;
  std::map<std::string, std::vector<int>> times_;
};

/// Layouts of four ranks, by their overrides: every axis alone and several together.
inline std::vector<std::vector<std::string>> layouts_of_four() {
  return {
      {"optimizer.distributed=false"},
      {"optimizer.distributed=true", "optimizer.overlap_param_gather=true"},
      {"parallel.tensor=2"},
      {"parallel.tensor=2", "parallel.sequence=true", "optimizer.distributed=false"},
      {"parallel.expert=4"},
      {"parallel.expert=2", "parallel.expert_tensor=2", "moe.dispatcher=allgather"},
      {"parallel.pipeline=4"},
      {"parallel.pipeline=4", "parallel.layout='E|tt||ttL'"},
      {"parallel.pipeline=2", "parallel.virtual_stages=2", "optimizer.distributed=false"},
      {"parallel.pipeline=2", "parallel.layout='Et|t||ttL'", "model.tie_embeddings=false"},
      {"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2", "parallel.pipeline=2"},
  };
}

}  // namespace ferry::testing
