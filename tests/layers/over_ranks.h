#pragma once

// A module on tensor-parallel ranks (threads) against the same module on one rank: outputs,
// gradients and totals, put together as pipeline and optimizer would.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layers/tensor_parallel.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"
#include "tests/support/placed_values.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {

struct OverRanks {
  std::function<std::unique_ptr<Module>(const TensorParallel&)> make;
  std::function<ModuleRun(Stream&)> run = [](Stream&) { return ModuleRun{}; };
  Shape x;   // of one rank; rank 0 where the module reads tokens
  Shape dy;  // rank 0 where the gradient begins in the module
  DType dtype = DType::F64;
  double tolerance = 1e-12;      // relative, in the 2-norm
  bool y_is_whole = false;       // token losses: all of them on every rank
  std::vector<int> sizes{2, 4};  // ranks
  std::vector<bool> sequence{false, true};
};

/// What a rank leaves behind.
struct RankResult {
  Outcome outcome;
  std::map<std::string, Parameter> parameters;  // without tensors
};

/// One micro-batch on this rank. `values` of the whole parameters are used if there are any, else
/// random ones are made and left there.
inline RankResult run_rank(const OverRanks& test, const TensorParallel& tensor,
                           std::map<std::string, std::vector<double>>& values) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream_owner = device->make_stream("rank");
  Stream& stream = *stream_owner;
  const std::unique_ptr<Module> module = test.make(tensor);
  if (values.empty()) {
    allocate_parameters(stream, *module, 1);
    module->visit([&](Parameter& p) { values[p.name] = read_back_as_double(stream, p.value); });
  }
  RankResult result;
  module->visit([&](Parameter& p) {
    p.value = tensor_of(stream, part_of(values.at(p.name), p.placement()), p.shape, p.dtype);
    p.grad = zeros(stream, p.shape, accumulate_dtype(p.dtype));
    Parameter& described = result.parameters[p.name] = p;
    described.value = described.grad = Tensor();
  });
  Tensor x, dy;
  if (test.x.rank() > 0) x = tensor.own_rows(random_tensor(stream, test.x, test.dtype, 2));
  if (test.dy.rank() > 0) dy = tensor.own_rows(random_tensor(stream, test.dy, test.dtype, 3));
  result.outcome = run_micro_batch(stream, *module, x, dy, test.run(stream));
  return result;
}

/// The gradient of the whole parameter: the sum over the ranks, which must be complete without the
/// ones that are copies.
inline std::vector<double> whole_gradient(const std::string& name,
                                          const std::vector<RankResult>& ranks) {
  const Parameter& first = ranks[0].parameters.at(name);
  const auto count = static_cast<size_t>(first.global_shape().numel());
  std::vector<double> sum(count, 0.0);
  std::vector<int> holders(count, 0);
  for (const RankResult& rank : ranks) {
    const Parameter& p = rank.parameters.at(name);
    const std::vector<double>& gradient = rank.outcome.tensors.at(concat("d(", name, ")"));
    EXPECT_EQ(p.axis, first.axis);
    EXPECT_EQ(p.global_shape(), first.global_shape());
    if (p.is_copy) {
      EXPECT_EQ(gradient, ranks[0].outcome.tensors.at(concat("d(", name, ")"))) << name;
      continue;
    }
    std::vector<bool> padding(gradient.size(), true);
    for_each_placed(p.placement(), [&](size_t global, size_t local) {
      sum[global] += gradient[local];
      ++holders[global];
      padding[local] = false;
    });
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (padding[i]) {
        EXPECT_EQ(gradient[i], 0) << name << ": padding has a gradient";
      }
    }
  }
  const int expected = first.axis == ReduceAxis::Stage ? static_cast<int>(ranks.size()) : 1;
  EXPECT_EQ(holders, std::vector<int>(count, expected)) << name;
  return sum;
}

inline Outcome put_together(const OverRanks& test, bool sequence,
                            const std::vector<RankResult>& ranks) {
  Outcome whole;
  for (const auto& [name, first] : ranks[0].outcome.tensors) {
    std::vector<double>& values = whole.tensors[name];
    if (name.starts_with("d(")) {
      values = whole_gradient(name.substr(2, name.size() - 3), ranks);
      continue;
    }
    const bool total = name.starts_with("total ");
    const bool rows = sequence && !(name == "y" && test.y_is_whole);
    for (const RankResult& rank : ranks) {
      const std::vector<double>& own = rank.outcome.tensors.at(name);
      if (total) {
        values.resize(own.size());
        for (size_t i = 0; i < own.size(); ++i) values[i] += own[i];
      } else if (rows) {
        values.insert(values.end(), own.begin(), own.end());
      } else {
        EXPECT_EQ(own, first) << name << " differs between ranks";
        values = own;
      }
    }
  }
  return whole;
}

inline std::vector<RankResult> run_over_ranks(const OverRanks& test, int size, bool sequence,
                                              std::map<std::string, std::vector<double>> values) {
  std::vector<RankResult> ranks(static_cast<size_t>(size));
  run_ranks(size, [&](Group& group, Control&) {
    auto own_values = values;
    const TensorParallel tensor{&group, group.rank(), size, sequence};
    ranks[static_cast<size_t>(group.rank())] = run_rank(test, tensor, own_values);
  });
  return ranks;
}

/// Every number of ranks, with and without sequence parallelism, gives what one rank gives.
inline void expect_same_over_ranks(const OverRanks& test,
                                   std::source_location where = std::source_location::current()) {
  std::map<std::string, std::vector<double>> values;
  const RankResult one = run_rank(test, {}, values);
  for (const int size : test.sizes) {
    for (const bool sequence : test.sequence) {
      const ::testing::ScopedTrace trace(
          where.file_name(), static_cast<int>(where.line()),
          concat(size, " ranks", sequence ? " with sequence parallelism" : ""));
      const auto ranks = run_over_ranks(test, size, sequence, values);
      expect_near(put_together(test, sequence, ranks), one.outcome, test.tolerance, where);
    }
  }
}

}  // namespace ferry::testing
