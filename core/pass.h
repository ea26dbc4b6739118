#pragma once

// A Pass: one micro-batch on its way through one stage.

#include <any>
#include <map>
#include <string>
#include <utility>

#include "core/rng.h"
#include "core/tape.h"
#include "core/tensor.h"

namespace ferry {

/// The tokens of one micro-batch, on the device. T = batch * seq.
struct Batch {
  int64_t batch = 0;            // sequences
  int64_t seq = 0;              // tokens of a sequence
  Tensor tokens;                // [T] I32
  Tensor labels;                // [T] I32
  Tensor loss_mask;             // [T] F32, 1 where the label counts
  int64_t num_loss_tokens = 0;  // sum of loss_mask over this micro-batch
  int64_t first_token = 0;      // index of token 0 in the global batch, for counter-based RNG
};

/// Sums over a step, kept on the device and read once at its end: loss, auxiliary losses, expert
/// loads. A tensor is made and zeroed at its first use.
class StepTotals {
 public:
  /// The total of this name; shape and dtype must not change.
  Tensor get(Stream& stream, const std::string& name, const Shape& shape, DType dtype);
  const std::map<std::string, Tensor>& all() const { return totals_; }
  void clear() { totals_.clear(); }

 private:
  std::map<std::string, Tensor> totals_;
};

class Pass {
 public:
  Pass(Stream& stream_, Tape& tape_argument, const Batch& batch_, StepTotals& totals_,
       RandomKey key_, bool training_)
      : stream(stream_),
        batch(batch_),
        totals(totals_),
        key(key_),
        training(training_),
        tape_(&tape_argument) {}

  Stream& stream;
  const Batch& batch;
  StepTotals& totals;
  RandomKey key;  // of this step; a site is chosen by the module
  bool training;  // false in evaluation: no dropout, nothing saved

  /// Where forward saves and backward loads.
  Tape& tape() const { return *tape_; }
  /// Runs `body` with another tape: how recomputation drops and rebuilds what a module saves.
  template <class Body>
  decltype(auto) with_tape(Tape& other, Body&& body) {
    struct Restore {
      Pass& pass;
      Tape* previous;
      ~Restore() { pass.tape_ = previous; }
    } restore{*this, std::exchange(tape_, &other)};
    return body();
  }

  /// A decision of forward (a routing plan, a count) that a second forward of the same micro-batch
  /// must not take again: the first call for `site` runs `decide`, later ones return its result.
  template <class Decide>
  auto once(const void* site, Decide&& decide) -> decltype(decide()) {
    using Result = decltype(decide());
    auto found = decisions_.find(site);
    if (found == decisions_.end()) found = decisions_.emplace(site, decide()).first;
    return std::any_cast<Result>(found->second);
  }

 private:
  Tape* tape_;
  std::map<const void*, std::any> decisions_;
};

}  // namespace ferry
