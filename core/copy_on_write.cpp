#include "core/copy_on_write.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace ferry {
namespace {

// Memory of copies is asked for in pieces of this many blocks.
constexpr int64_t kSlabBlocks = 64;

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

struct CopyOnWrite::Block {
  std::mutex mutex;
  const std::byte* begin = nullptr;
  int64_t bytes = 0;
  int64_t unread = 0;         // 0: it may change
  std::byte* copy = nullptr;  // null: the memory is as it was
};

CopyOnWrite::CopyOnWrite(int64_t max_copy_bytes, int64_t block_bytes)
    : max_copy_bytes_(max_copy_bytes), block_bytes_(block_bytes) {
  CHECK(max_copy_bytes >= 0 && block_bytes > 0, max_copy_bytes, " in blocks of ", block_bytes);
}

CopyOnWrite::~CopyOnWrite() = default;

void CopyOnWrite::begin(std::vector<std::span<const std::byte>> regions) {
  std::sort(regions.begin(), regions.end(),
            [](const auto& a, const auto& b) { return a.data() < b.data(); });
  regions_.clear();
  num_blocks_ = 0;
  for (const auto& region : regions) {
    if (region.empty()) continue;
    CHECK(regions_.empty() || regions_.back().begin + regions_.back().bytes <= region.data(),
          "regions overlap");
    const auto bytes = static_cast<int64_t>(region.size());
    regions_.push_back({region.data(), bytes, num_blocks_});
    num_blocks_ += static_cast<size_t>((bytes + block_bytes_ - 1) / block_bytes_);
  }
  blocks_ = std::make_unique<Block[]>(num_blocks_);
  for (const Region& region : regions_) {
    size_t i = region.first_block;
    for (int64_t at = 0; at < region.bytes; at += block_bytes_) {
      Block& block = blocks_[i++];
      block.begin = region.begin + at;
      block.bytes = block.unread = std::min(block_bytes_, region.bytes - at);
    }
  }
  const std::lock_guard lock(mutex_);
  CHECK(!active_, "the last reader has not ended");
  active_ = true;
}

template <class Visit>
void CopyOnWrite::for_each_part(const void* data, int64_t bytes, const Visit& visit) {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::byte* end = begin + bytes;
  // The first region that ends behind the range's begin.
  auto region = std::partition_point(regions_.begin(), regions_.end(),
                                     [&](const Region& r) { return r.begin + r.bytes <= begin; });
  for (; region != regions_.end() && region->begin < end; ++region) {
    const int64_t first = std::max<int64_t>(0, begin - region->begin);
    const int64_t last = std::min<int64_t>(region->bytes, end - region->begin);
    for (int64_t at = first; at < last;) {
      const int64_t index = at / block_bytes_;
      const int64_t count = std::min((index + 1) * block_bytes_, last) - at;
      visit(blocks_[region->first_block + static_cast<size_t>(index)], region->begin + at, count);
      at += count;
    }
  }
}

void CopyOnWrite::before_change(const void* data, int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (!active_) return;
  }
  for_each_part(data, bytes, [&](Block& block, const std::byte*, int64_t) {
    while (true) {
      int64_t seen = 0;
      {
        const std::lock_guard lock(block.mutex);
        if (block.unread == 0 || block.copy != nullptr) return;
        {
          const std::lock_guard look(mutex_);
          seen = progress_;
        }
        block.copy = take_memory();
        if (block.copy != nullptr) {
          std::memcpy(block.copy, block.begin, static_cast<size_t>(block.bytes));
          return;
        }
      }
      // The block is not locked here: it may be the one that the reader comes to next.
      wait_for_progress(seen);
    }
  });
}

void CopyOnWrite::read(void* to, const void* data, int64_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  int64_t read = 0;
  for_each_part(data, bytes, [&](Block& block, const std::byte* begin, int64_t count) {
    const std::lock_guard lock(block.mutex);
    CHECK(block.unread >= count, "memory is read twice");
    const std::byte* from = block.copy == nullptr ? begin : block.copy + (begin - block.begin);
    std::memcpy(out + read, from, static_cast<size_t>(count));
    read += count;
    block.unread -= count;
    if (block.unread > 0) return;
    if (block.copy != nullptr) give_back(std::exchange(block.copy, nullptr));
    let_others_look();
  });
  CHECK(read == bytes, "only ", read, " of ", bytes, " bytes are in a region");
}

void CopyOnWrite::end() {
  for (size_t i = 0; i < num_blocks_; ++i) {
    Block& block = blocks_[i];
    const std::lock_guard lock(block.mutex);
    block.unread = 0;
    if (block.copy != nullptr) give_back(std::exchange(block.copy, nullptr));
  }
  {
    const std::lock_guard lock(mutex_);
    active_ = false;
  }
  let_others_look();
}

void CopyOnWrite::wait_for_end() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !active_; });
}

std::byte* CopyOnWrite::take_memory() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    const int64_t blocks =
        std::min(kSlabBlocks, (max_copy_bytes_ - allocated_ + block_bytes_ - 1) / block_bytes_);
    if (blocks <= 0) return nullptr;
    slabs_.emplace_back(new std::byte[static_cast<size_t>(blocks * block_bytes_)]);
    for (int64_t i = blocks - 1; i >= 0; --i)
      free_.push_back(slabs_.back().get() + i * block_bytes_);
    allocated_ += blocks * block_bytes_;
  }
  copied_ += block_bytes_;
  std::byte* memory = free_.back();
  free_.pop_back();
  return memory;
}

void CopyOnWrite::give_back(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  free_.push_back(memory);
}

void CopyOnWrite::let_others_look() {
  const std::lock_guard lock(mutex_);
  ++progress_;
  changed_.notify_all();
}

void CopyOnWrite::wait_for_progress(int64_t seen) {
  std::unique_lock lock(mutex_);
  if (num_waiting_++ == 0) waiting_since_ = now_ns();
  changed_.wait(lock, [&] { return progress_ != seen || !active_; });
  if (--num_waiting_ == 0) waited_ += 1e-9 * static_cast<double>(now_ns() - waiting_since_);
}

double CopyOnWrite::waited_seconds() const {
  const std::lock_guard lock(mutex_);
  return waited_;
}

int64_t CopyOnWrite::copied_bytes() const {
  const std::lock_guard lock(mutex_);
  return copied_;
}

}  // namespace ferry
