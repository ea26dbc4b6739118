#include "app/snapshot_buffer.h"

#include <utility>

namespace ferry {
namespace {

// More than any host has.
constexpr int64_t kNoLimit = int64_t{1} << 60;

}  // namespace

// Reads what a guard looks after.
class SnapshotBuffer::GuardedSource final : public SliceSource {
 public:
  explicit GuardedSource(CopyOnWrite& guard) : guard_(guard) {}
  const void* read(const void* data, int64_t bytes, void* scratch) override {
    guard_.read(scratch, data, bytes);
    return scratch;
  }

 private:
  CopyOnWrite& guard_;
};

SnapshotBuffer::SnapshotBuffer(SnapshotSource source, int64_t max_copy_bytes)
    : source_(std::move(source)),
      copies_(source_.compute.device().make_stream("checkpoint")),
      guard_(std::make_shared<CopyOnWrite>(max_copy_bytes > 0 ? max_copy_bytes : kNoLimit)),
      guarded_(std::make_unique<GuardedSource>(*guard_)) {
  source_.store.set_guard(guard_);
  reserve(stored_parts(source_.rows, source_.rule, source_.store));
}

SnapshotBuffer::~SnapshotBuffer() = default;

void SnapshotBuffer::reserve(const std::vector<StoredPart>& parts) {
  std::map<std::string, Tensor> before = std::exchange(host_, {});
  for (const StoredPart& part : parts) {
    if (source_.store.is_guarded(*part.parameter)) continue;
    Tensor& host = host_[part.name];
    host = before[part.name];
    if (!host.defined())
      host = Tensor::host(source_.compute.device(), "checkpoint", part.tensor.shape(), part.stored);
  }
}

void SnapshotBuffer::take() {
  const std::vector<StoredPart> parts = stored_parts(source_.rows, source_.rule, source_.store);
  reserve(parts);  // state may have moved since
  copies_->wait(source_.compute.record());
  slices_.clear();
  std::vector<std::span<const std::byte>> guarded;
  for (const StoredPart& part : parts) {
    if (source_.store.is_guarded(*part.parameter)) {
      const size_t first = slices_.size();
      part.add_slices(slices_, part.tensor, guarded_.get());
      for (const SliceToSave& slice : std::span(slices_).subspan(first))
        guarded.emplace_back(static_cast<const std::byte*>(slice.data),
                             static_cast<size_t>(slice.extent.numel()) * size_of(slice.dtype));
    } else {
      const Tensor& host = host_.at(part.name);
      copy_to_host(*copies_, host, part.tensor);
      part.add_slices(slices_, host);
    }
  }
  guard_->begin(std::move(guarded));
  copied_ = copies_->record();
  update_waits_ = true;
}

void SnapshotBuffer::wait_before_update() {
  if (!std::exchange(update_waits_, false)) return;
  wait_begin_ = source_.compute.stamp();
  source_.compute.wait(copied_);
  wait_end_ = source_.compute.stamp();
}

double SnapshotBuffer::take_waited_seconds() {
  const double guard_waited = guard_->waited_seconds();
  double seconds = guard_waited - std::exchange(guard_waited_, guard_waited);
  if (wait_end_) seconds += std::exchange(wait_end_, nullptr)->seconds_since(*wait_begin_);
  return seconds;
}

int64_t SnapshotBuffer::reserved_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, host] : host_) bytes += host.bytes();
  return bytes;
}

}  // namespace ferry
