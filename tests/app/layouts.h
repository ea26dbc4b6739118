#pragma once

// Trains a configuration on the ranks of a group and brings everything that must not depend on the
// layout to all of them: the numbers of each step, the whole gradients of the last step, and the
// whole weights after it. Works on any group of ranks, threads or processes.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/app/training_rank.h"

namespace ferry::testing {

/// Relative; see differences().
inline double layout_tolerance(const std::string& precision) {
  return precision == "fp64" ? 1e-10 : 2e-5;
}

using WholeTensors = std::map<std::string, std::vector<double>>;

struct LayoutOutcome {
  std::vector<std::map<std::string, double>> steps;  // losses and the norm
  std::vector<std::vector<double>> expert_tokens;    // of each step, [MoE layer * experts]
  WholeTensors gradients;                            // of the last step
  WholeTensors weights;                              // after it
  std::vector<std::string> faults;  // elements that no rank or several own; copies that differ
};

/// Puts tensors of the whole model together from the parts of all ranks of a group. All ranks make
/// the same calls.
class WholeModel {
 public:
  WholeModel(const RunConfig& config, Group& world, Stream& stream)
      : world_(world), stream_(stream) {
    Gpt(config.gpt(), "none", 0).visit([&](Parameter& parameter) {
      firsts_[parameter.name] = numel_;
      numel_ += static_cast<size_t>(parameter.shape.numel());
    });
    clear();
  }

  /// This rank's elements of a parameter.
  void add(const std::string& name, const std::vector<double>& values, const Placement& placement) {
    const size_t first = firsts_.at(name);
    for_each_placed(placement, [&](size_t global, size_t local) {
      times_[first + global] += 1;
      smallest_[first + global] = std::min(smallest_[first + global], values.at(local));
      largest_[first + global] = std::max(largest_[first + global], values.at(local));
      has_nan_ += std::isnan(values.at(local));
    });
  }

  /// What all ranks added since the last time. A fault for each tensor with elements that nobody
  /// gave, that ranks gave with different values, or, with `once`, that more than one rank gave.
  WholeTensors collect(const std::string& what, bool once, std::vector<std::string>& faults) {
    for (double& value : smallest_) value = -value;
    reduce(times_, ReduceOp::Sum);
    reduce(smallest_, ReduceOp::Max);
    reduce(largest_, ReduceOp::Max);
    std::vector<double> num_nan{has_nan_};
    reduce(num_nan, ReduceOp::Sum);
    if (num_nan[0] > 0) faults.push_back(concat(what, ": ", num_nan[0], " elements are NaN"));

    WholeTensors tensors;
    for (auto tensor = firsts_.begin(); tensor != firsts_.end(); ++tensor) {
      const size_t first = tensor->second, end = end_of(first);
      int64_t num_absent = 0, num_repeated = 0, num_unequal = 0;
      for (size_t i = first; i < end; ++i) {
        num_absent += times_[i] == 0;
        num_repeated += once && times_[i] > 1;
        num_unequal += times_[i] > 0 && largest_[i] != -smallest_[i];
      }
      const auto add_fault = [&](int64_t count, const char* text) {
        if (count > 0)
          faults.push_back(concat(what, ' ', tensor->first, ": ", count, " elements ", text));
      };
      add_fault(num_absent, "are on no rank");
      add_fault(num_repeated, "count more than once");
      add_fault(num_unequal, "differ between ranks");
      tensors[tensor->first] = {largest_.begin() + static_cast<int64_t>(first),
                                largest_.begin() + static_cast<int64_t>(end)};
    }
    clear();
    return tensors;
  }

 private:
  void clear() {
    const double infinity = std::numeric_limits<double>::infinity();
    times_.assign(numel_, 0);
    smallest_.assign(numel_, infinity);
    largest_.assign(numel_, -infinity);
    has_nan_ = 0;
  }
  size_t end_of(size_t first) const {
    size_t end = numel_;
    for (const auto& [name, other] : firsts_)
      if (other > first) end = std::min(end, other);
    return end;
  }
  void reduce(std::vector<double>& values, ReduceOp op) {
    const Tensor tensor = from_host(stream_, "test", values, {std::ssize(values)});
    world_.all_reduce(stream_, tensor, op);
    values = read_back<double>(stream_, tensor);
  }

  Group& world_;
  Stream& stream_;
  std::map<std::string, size_t> firsts_;  // where each tensor begins in the vectors
  size_t numel_ = 0;
  std::vector<double> times_, smallest_, largest_;
  double has_nan_ = 0;
};

/// One rank of a job.
class LayoutRank {
 public:
  /// `world`: all ranks, for the comparison. `model_world`: the same ranks, for the model.
  LayoutRank(const RunConfig& config, Group& world, Group& model_world)
      : config_(config),
        world_(world),
        rank_(config, model_world),
        whole_(config, world, rank_.stream()) {}

  LayoutOutcome train() {
    LayoutOutcome outcome;
    TrainModel& model = rank_.model();
    for (int64_t step = 1; step <= config_.run.steps; ++step) {
      const double all_tokens = add_numbers(rank_.passes().num_loss_tokens, outcome);
      if (step == config_.run.steps) {
        add_gradients();
        outcome.gradients = whole_.collect("gradient of", /*once=*/true, outcome.faults);
        if (!config_.optimizer.distributed) {
          add_all([](const Parameter& parameter) { return parameter.grad; });
          whole_.collect("gradient of", /*once=*/false, outcome.faults);
        }
      }
      const double norm = model.gradient_norm(all_tokens);
      outcome.steps.back()["gradient norm"] = norm;
      model.update(step, all_tokens, norm);
    }
    model.finish_update();
    add_all([](const Parameter& parameter) { return parameter.value; });
    outcome.weights = whole_.collect("weight", /*once=*/false, outcome.faults);
    return outcome;
  }

 private:
  // The step's sums over ranks, of which each brings what no other has. Returns the tokens.
  double add_numbers(double tokens, LayoutOutcome& outcome) {
    const StepTotals& totals = rank_.model().totals();
    const auto total = [&](const char* name) { return read_total(rank_.stream(), totals, name); };
    std::vector<double> sums{tokens, total("loss"), total("aux_loss"), total("z_loss")};
    const auto experts = static_cast<size_t>(config_.moe.experts), num_sums = sums.size();
    sums.resize(num_sums + static_cast<size_t>(config_.model.layers) * experts);
    for (const auto& [moe_layer, name] : rank_.model().model().expert_counts()) {
      const std::vector<double> counts = read_back_as_double(rank_.stream(), totals.all().at(name));
      for (size_t i = 0; i < counts.size(); ++i)
        sums[num_sums + static_cast<size_t>(moe_layer) * experts + i] = counts[i];
    }
    sum_over_ranks(sums, world_, rank_.stream());
    outcome.steps.push_back({{"loss", sums[1]}, {"aux loss", sums[2]}, {"z-loss", sums[3]}});
    outcome.expert_tokens.emplace_back(sums.begin() + static_cast<int64_t>(num_sums), sums.end());
    return sums[0];
  }

  // The rows that this rank owns.
  void add_gradients() {
    const ReduceGroups groups = reduce_groups(rank_.groups());
    for (const Parameter* parameter : rank_.model().parameters()) {
      if (parameter->is_copy) continue;
      const Group& group = groups.of(parameter->axis);
      const RowRange own = owned_rows(*parameter, group.rank(), group.size());
      const Shape matrix{matrix_rows(parameter->shape), matrix_columns(parameter->shape)};
      whole_.add(parameter->name,
                 read_back_as_double(rank_.stream(),
                                     parameter->grad.reshape(matrix).rows(own.begin, own.end)),
                 parameter->placement().rows(own.begin, own.end));
    }
  }

  template <class Read>
  void add_all(const Read& read) {
    for (const Parameter* parameter : rank_.model().parameters())
      whole_.add(parameter->name, read_back_as_double(rank_.stream(), read(*parameter)),
                 parameter->placement());
  }

  const RunConfig& config_;
  Group& world_;
  TrainingRank rank_;
  WholeModel whole_;
};

/// Trains on this rank of `world`; the model communicates through `model_world`. Collective; the
/// outcome is the same on all ranks.
inline LayoutOutcome train_layout(const RunConfig& config, Group& world, Group& model_world) {
  return LayoutRank(config, world, model_world).train();
}
inline LayoutOutcome train_layout(const RunConfig& config, Group& world) {
  return train_layout(config, world, world);
}
inline LayoutOutcome train_alone(const RunConfig& config) {
  const auto solo = make_solo_group();
  return train_layout(config, *solo);
}

/// What differs, a line for each number or tensor. Numbers may differ by `tolerance` times their
/// size, elements of a tensor by `tolerance` times the tensor's largest one; counts not at all.
inline std::vector<std::string> differences(const LayoutOutcome& actual,
                                            const LayoutOutcome& expected, double tolerance) {
  std::vector<std::string> lines = actual.faults;
  CHECK(actual.steps.size() == expected.steps.size(), "runs of different lengths");
  for (size_t step = 0; step < expected.steps.size(); ++step) {
    for (const auto& [name, wanted] : expected.steps[step]) {
      const double value = actual.steps[step].at(name);
      if (!(std::abs(value - wanted) <= tolerance * std::abs(wanted)))
        lines.push_back(concat("step ", step + 1, ", ", name, ": ", value, ", and ", wanted,
                               " on one rank, off by ", std::abs(value - wanted)));
    }
    if (actual.expert_tokens[step] != expected.expert_tokens[step])
      lines.push_back(concat("step ", step + 1, ": other tokens of experts"));
  }
  const auto compare = [&](const char* what, const WholeTensors& tensors,
                           const WholeTensors& wanted) {
    CHECK(tensors.size() == wanted.size(), "models of different tensors");
    for (const auto& [name, one] : wanted) {
      const std::vector<double>& all = tensors.at(name);
      double largest = 0, error = 0;
      for (size_t i = 0; i < one.size(); ++i) {
        largest = std::max(largest, std::abs(one[i]));
        error = std::max(error, std::abs(all.at(i) - one[i]));
      }
      if (!(error <= tolerance * largest))
        lines.push_back(concat(what, ' ', name, ": off by ", error, ", largest element ", largest));
    }
  };
  compare("gradient of", actual.gradients, expected.gradients);
  compare("weight", actual.weights, expected.weights);
  return lines;
}

/// All lines, for a failure message.
inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += concat("\n  ", line);
  return text;
}

}  // namespace ferry::testing
