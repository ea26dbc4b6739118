#include "layers/recompute.h"

namespace ferry {

// Cutting and joining rows is what sequence parallelism does at the borders of its regions.
ActivationCheckpoint::ActivationCheckpoint(Label label, const TensorParallel& shared)
    : label_(label), shared_(shared) {
  CHECK(!shared.sequence, "under sequence parallelism each rank has only its rows of the input");
  shared_.sequence = true;
}

Tensor ActivationCheckpoint::forward(Pass& pass, const Tensor& x, const Run& run) const {
  if (!pass.tape().recording()) return run(x);
  Tensor saved = x;
  if (shared_.size > 1) {
    // A copy, because a view would keep all rows.
    const Tensor own = shared_.own_rows(x);
    saved = Tensor::empty(pass.stream, name_of(label_), own.shape(), own.dtype());
    pass.stream.copy(saved, own);
  }
  pass.tape().save(pass.stream, label_, {saved});
  Tape off(Tape::Mode::Off);
  return pass.with_tape(off, [&] { return run(x); });
}

Tensor ActivationCheckpoint::backward(Pass& pass, const Tensor& dy, const Run& again,
                                      const Run& backward) const {
  auto [saved] = pass.tape().load<1>(pass.stream, label_);
  Tape local(Tape::Mode::Record, nullptr, pass.tape().ledger());
  return pass.with_tape(local, [&] {
    again(shared_.enter(pass.stream, saved));
    saved = Tensor();
    const Tensor dx = backward(dy);
    CHECK(local.empty(), local.num_records(), " records of a recomputed ", name_of(label_),
          " were not loaded");
    return dx;
  });
}

Tensor Recompute::forward(Pass& pass, const Tensor& x) {
  return checkpoint_.forward(pass, x, [&](const Tensor& in) { return inner_->forward(pass, in); });
}

Tensor Recompute::backward(Pass& pass, const Tensor& dy) {
  return checkpoint_.backward(
      pass, dy, [&](const Tensor& in) { return inner_->forward(pass, in); },
      [&](const Tensor& dout) { return inner_->backward(pass, dout); });
}

}  // namespace ferry
