#include "app/state_snapshot.h"

#include <utility>

#include "app/train_model.h"
#include "core/ops/elementwise.h"

namespace ferry {
namespace {

// `to` is in host memory and has the stored type.
void copy_to_host(Stream& stream, const Tensor& to, const Tensor& part) {
  if (part.dtype() == to.dtype()) return stream.copy(to, part);
  const Tensor wide = Tensor::empty(stream, "checkpoint", part.shape(), to.dtype());
  cast(stream, wide, part);
  stream.copy(to, wide);
}

}  // namespace

SnapshotSource snapshot_source(TrainModel& model) {
  return {model.model().stream(), model.stored_rows(), model.rule(), model.store()};
}

StateSnapshot StateSnapshot::now(SnapshotSource source) {
  StateSnapshot snapshot(std::move(source));
  Stream& compute = snapshot.source_.compute;
  snapshot.take(compute);
  compute.record().wait_host();
  return snapshot;
}

StateSnapshot::StateSnapshot(SnapshotSource source, SliceSource* guarded)
    : source_(std::move(source)), guarded_(guarded) {}

std::vector<StoredPart> StateSnapshot::parts() const {
  return stored_parts(source_.rows, source_.rule, source_.store);
}

bool StateSnapshot::is_read_in_place(const StoredPart& part) const {
  if (guarded_ != nullptr) return source_.store.is_guarded(*part.parameter);
  return part.tensor.on_host() && part.tensor.dtype() == part.stored;
}

void StateSnapshot::reserve(const std::vector<StoredPart>& parts) {
  copies_.resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (is_read_in_place(parts[i]))
      copies_[i] = Tensor();
    else if (!copies_[i].defined())
      copies_[i] = Tensor::host(source_.compute.device(), "checkpoint", parts[i].tensor.shape(),
                                parts[i].stored);
  }
}

void StateSnapshot::reserve() { reserve(parts()); }

void StateSnapshot::take(Stream& stream) {
  const std::vector<StoredPart> all = parts();
  reserve(all);
  slices_.clear();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!copies_[i].defined()) {
      all[i].add_slices(slices_, all[i].tensor, guarded_);
      continue;
    }
    copy_to_host(stream, copies_[i], all[i].tensor);
    all[i].add_slices(slices_, copies_[i]);
  }
}

int64_t StateSnapshot::reserved_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& copy : copies_)
    if (copy.defined()) bytes += copy.bytes();
  return bytes;
}

}  // namespace ferry
