#include "app/guarded_snapshot.h"

#include <cstddef>
#include <span>
#include <utility>

namespace ferry {
namespace {

// More than any host has.
constexpr int64_t kNoLimit = int64_t{1} << 60;

}  // namespace

// Reads what a guard looks after.
class GuardedSnapshot::GuardedSource final : public SliceSource {
 public:
  explicit GuardedSource(CopyOnWrite& guard) : guard_(guard) {}
  const void* read(const void* data, int64_t bytes, void* scratch) override {
    guard_.read(scratch, data, bytes);
    return scratch;
  }

 private:
  CopyOnWrite& guard_;
};

GuardedSnapshot::GuardedSnapshot(SnapshotSource source, int64_t max_copy_bytes)
    : compute_(source.compute),
      copies_(compute_.device().make_stream("checkpoint")),
      guard_(std::make_shared<CopyOnWrite>(max_copy_bytes > 0 ? max_copy_bytes : kNoLimit)),
      guarded_(std::make_unique<GuardedSource>(*guard_)),
      snapshot_(source, guarded_.get()) {
  source.store.set_guard(guard_);
  snapshot_.reserve();
}

GuardedSnapshot::~GuardedSnapshot() = default;

void GuardedSnapshot::take() {
  copies_->wait(compute_.record());
  snapshot_.take(*copies_);
  std::vector<std::span<const std::byte>> guarded;
  for (const SliceToSave& slice : snapshot_.slices())
    if (slice.source != nullptr)
      guarded.emplace_back(static_cast<const std::byte*>(slice.data),
                           static_cast<size_t>(slice.extent.numel()) * size_of(slice.dtype));
  guard_->begin(std::move(guarded));
  copied_ = copies_->record();
  update_waits_ = true;
}

void GuardedSnapshot::wait_before_update() {
  if (!std::exchange(update_waits_, false)) return;
  wait_begin_ = compute_.stamp();
  compute_.wait(copied_);
  wait_end_ = compute_.stamp();
}

double GuardedSnapshot::take_waited_seconds() {
  const double guard_waited = guard_->waited_seconds();
  double seconds = guard_waited - std::exchange(guard_waited_, guard_waited);
  if (wait_end_) seconds += std::exchange(wait_end_, nullptr)->seconds_since(*wait_begin_);
  return seconds;
}

}  // namespace ferry
