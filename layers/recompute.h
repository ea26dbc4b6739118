#pragma once

// Activation recomputation by checkpointing (T. Chen et al., "Training deep nets with sublinear
// memory cost", 2016): of a part of the model only the input is saved. Backward runs its forward
// again, on a tape of its own, and then its backward from there.
//
//   forward    tape: input                     the part's forward, with saving off
//   backward   tape: -     its own tape: all   the part's forward again, then its backward
//
// The second forward is the first one bit by bit: randomness is counter-based, and decisions and
// counts are kept in the Pass (see Pass::once). Checkpoints nest. In evaluation nothing is saved.

#include <functional>
#include <memory>

#include "core/module.h"
#include "layers/tensor_parallel.h"

namespace ferry {

class ActivationCheckpoint {
 public:
  /// From x [rows, ...] to y in forward, from dy to dx in backward.
  using Run = std::function<Tensor(const Tensor&)>;

  /// Inputs are saved under `label`.
  explicit ActivationCheckpoint(Label label) : label_(label) {}
  /// The same, where every rank of `shared` has the same input: each saves its 1/size of the rows,
  /// which backward gathers. Not for sequence parallelism; the ranks must divide the rows.
  ActivationCheckpoint(Label label, const TensorParallel& shared);

  /// y = run(x), of which the tape keeps x alone. `run` must not write to x.
  Tensor forward(Pass& pass, const Tensor& x, const Run& run) const;
  /// dx = backward(dy), after `again`, which must do what `run` did. On the same stream.
  Tensor backward(Pass& pass, const Tensor& dy, const Run& again, const Run& backward) const;

 private:
  Label label_;
  TensorParallel shared_;  // one rank unless inputs are shared
};

/// A module that is recomputed.
class Recompute final : public Module {
 public:
  Recompute(std::unique_ptr<Module> inner, Label label)
      : inner_(std::move(inner)), checkpoint_(label) {}

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override { inner_->visit(visitor); }

 private:
  std::unique_ptr<Module> inner_;
  ActivationCheckpoint checkpoint_;
};

}  // namespace ferry
