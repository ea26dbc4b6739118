#pragma once

// One micro-batch through a module, with everything it leaves behind read back to the host, so that
// runs can be compared: over devices, dtypes, tape policies and cuts into micro-batches.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <source_location>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/module.h"
#include "tests/support/gradients.h"

namespace ferry::testing {

/// Sequences of a batch with random tokens and labels in [0, vocab); every fifth token of the batch
/// has a label that does not count. `begin` and `end` cut sequences out of the batch of all
/// `sequences`, as a micro-batch does.
inline Batch random_batch(Stream& stream, int64_t sequences, int64_t seq, int32_t vocab,
                          uint64_t seed, int64_t begin = 0, int64_t end = -1) {
  if (end < 0) end = sequences;
  const Shape all{sequences * seq};
  Batch batch;
  batch.batch = end - begin;
  batch.seq = seq;
  batch.tokens = random_ints(stream, all, vocab, seed).rows(begin * seq, end * seq);
  batch.labels = random_ints(stream, all, vocab, seed + 1).rows(begin * seq, end * seq);
  std::vector<float> mask;
  for (int64_t token = begin * seq; token < end * seq; ++token) {
    mask.push_back(token % 5 == 3 ? 0.0f : 1.0f);
    batch.num_loss_tokens += token % 5 != 3;
  }
  batch.loss_mask = from_host(stream, "mask", mask, {(end - begin) * seq});
  batch.first_token = begin * seq;
  return batch;
}

/// Drops what the labels name and rebuilds it when it is loaded.
class DiscardPolicy final : public TapePolicy {
 public:
  explicit DiscardPolicy(std::set<Label> labels) : labels_(std::move(labels)) {}
  bool discards(Label label) const override { return labels_.contains(label); }

 private:
  std::set<Label> labels_;
};

/// "y", "dx", "d(NAME)" of each parameter, "total NAME" of each step total.
struct Outcome {
  std::map<std::string, std::vector<double>> tensors;
  int64_t saved_bytes = 0;  // of the device, from before forward to after it, without y
  size_t num_records = 0;   // on the tape after forward
};

/// Forward and backward of one micro-batch on gradients that are zeroed first. With `training`
/// false: forward only, as in evaluation. x and dy may be undefined where the module ignores them.
inline Outcome run_micro_batch(Stream& stream, Module& module, const Tensor& x, const Tensor& dy,
                               const ModuleRun& run, TapePolicy* policy = nullptr) {
  module.visit([&](Parameter& parameter) { stream.zero(parameter.grad); });
  Outcome outcome;
  StepTotals totals;
  {
    Tape tape(run.training ? Tape::Mode::Record : Tape::Mode::Off, policy);
    Pass pass(stream, tape, run.batch, totals, run.key, run.training);
    stream.synchronize();
    const int64_t before = stream.device().memory().current();
    Tensor y = module.forward(pass, x);
    stream.synchronize();
    outcome.saved_bytes = stream.device().memory().current() - before - y.bytes();
    outcome.num_records = tape.num_records();
    outcome.tensors["y"] = read_back_as_double(stream, y);
    if (run.training) {
      const Tensor dx = module.backward(pass, dy);
      EXPECT_TRUE(tape.empty()) << tape.num_records() << " records are left on the tape";
      if (dx.defined()) outcome.tensors["dx"] = read_back_as_double(stream, dx);
      module.visit([&](Parameter& parameter) {
        outcome.tensors[concat("d(", parameter.name, ")")] =
            read_back_as_double(stream, parameter.grad);
      });
    }
  }
  for (const auto& [name, total] : totals.all())
    outcome.tensors["total " + name] = read_back_as_double(stream, total);
  return outcome;
}

/// Equal numbers everywhere; a NaN is equal to nothing.
inline void expect_same(const Outcome& actual, const Outcome& expected,
                        std::source_location where = std::source_location::current()) {
  const ::testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()), "outcome");
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, values] : expected.tensors) {
    ASSERT_TRUE(actual.tensors.contains(name)) << name;
    EXPECT_TRUE(actual.tensors.at(name) == values) << name << " differs";
  }
}

/// |a - b| / |b| in the 2-norm; NaN if either holds one.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  CHECK(a.size() == b.size(), a.size(), " and ", b.size(), " elements");
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]);
  return difference == 0 ? 0 : std::sqrt(difference / dot(b, b));
}

/// Each tensor with a relative error of at most `tolerance` in the 2-norm.
inline void expect_near(const Outcome& actual, const Outcome& expected, double tolerance,
                        std::source_location where = std::source_location::current()) {
  const ::testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()), "outcome");
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, values] : expected.tensors) {
    ASSERT_TRUE(actual.tensors.contains(name)) << name;
    const double error = relative_error(actual.tensors.at(name), values);
    EXPECT_TRUE(error <= tolerance) << name << " has a relative error of " << error;
  }
}

/// Gives every parameter of `to` the value of the parameter of `from` with its name, exactly if the
/// dtype can hold it, and zeroed gradients.
inline void copy_parameters(Stream& from_stream, Module& from, Stream& to_stream, Module& to) {
  std::map<std::string, std::vector<double>> values;
  from.visit([&](Parameter& parameter) {
    values[parameter.name] = read_back_as_double(from_stream, parameter.value);
  });
  to.visit([&](Parameter& parameter) {
    parameter.value =
        tensor_of(to_stream, values.at(parameter.name), parameter.shape, parameter.dtype);
    parameter.grad = zeros(to_stream, parameter.shape, accumulate_dtype(parameter.dtype));
  });
}

/// As expect_gradients, for modules in which the gradient begins: L = the sum of what forward
/// returns, token losses, plus run.added_loss.
inline void expect_loss_gradients(Stream& stream, Module& module, const Tensor& x,
                                  const ModuleRun& run, const GradientCheck& check = {},
                                  std::source_location where = std::source_location::current()) {
  std::vector<GradientPoint> points;
  module.visit([&](Parameter& parameter) { stream.zero(parameter.grad); });
  {
    Tape tape;
    StepTotals totals;
    Pass pass(stream, tape, run.batch, totals, run.key, run.training);
    module.forward(pass, x);
    const Tensor dx = module.backward(pass, {});
    EXPECT_TRUE(tape.empty()) << tape.num_records() << " records are left on the tape";
    if (dx.defined()) points.push_back({"the input", x, dx});
    module.visit([&](Parameter& parameter) {
      points.push_back({parameter.name, parameter.value, parameter.grad});
    });
  }
  const auto loss = [&] {
    Tape tape(Tape::Mode::Off);
    StepTotals totals;
    Pass pass(stream, tape, run.batch, totals, run.key, run.training);
    double sum = 0;
    for (const double token : read_back_as_double(stream, module.forward(pass, x))) sum += token;
    return run.added_loss ? sum + run.added_loss(totals) : sum;
  };
  expect_directional_gradients(stream, points, loss, check, where);
}

}  // namespace ferry::testing
