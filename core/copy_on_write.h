#pragma once

// A reader sees host memory as it was at one moment, while others change it: what they are about to
// change is copied first, unless it has been read already. So a copy exists of little at a time,
// and for a short time, where a copy of everything would need all of its memory at once.
//
//   begin(regions)                      the moment; nobody changes the regions meanwhile
//   read(...)                           by the reader, any threads, each byte once
//   before_change(...)                  by whoever changes memory, any threads, before they do
//   end()                               by the reader: from now on everything may change
//
// Memory is looked after in blocks. Reading and copying a block exclude each other.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace ferry {

class CopyOnWrite {
 public:
  /// Memory of copies is at most `max_copy_bytes`, allocated when it is first needed and kept; when
  /// it is used up, before_change() waits for the reader. A block has `block_bytes`.
  explicit CopyOnWrite(int64_t max_copy_bytes, int64_t block_bytes = int64_t{512} << 10);
  ~CopyOnWrite();
  CopyOnWrite(const CopyOnWrite&) = delete;
  CopyOnWrite& operator=(const CopyOnWrite&) = delete;

  /// `regions` do not overlap, and stay where they are until end(). The calls before are ended.
  void begin(std::vector<std::span<const std::byte>> regions);
  /// The memory may change after this returns. What is in no region is nobody's business.
  void before_change(const void* data, int64_t bytes);
  /// Fills `to` with the `bytes` at `data`, which are in one region, as they were at begin().
  void read(void* to, const void* data, int64_t bytes);
  /// Also after a failure, with parts that were never read: nobody waits any more.
  void end();
  /// Blocks until end() was called, if there was a begin().
  void wait_for_end();

  /// Of this object's life: seconds in which a change waited for the reader, and bytes copied.
  double waited_seconds() const;
  int64_t copied_bytes() const;
  int64_t max_copy_bytes() const { return max_copy_bytes_; }

 private:
  struct Block;
  struct Region {
    const std::byte* begin;
    int64_t bytes;
    size_t first_block;
  };

  /// Calls visit(block, begin, bytes in it) for the parts of blocks that the range meets.
  template <class Visit>
  void for_each_part(const void* data, int64_t bytes, const Visit& visit);
  std::byte* take_memory();  // null: used up
  void give_back(std::byte* memory);
  void let_others_look();
  /// Until something was given back, or there is nothing to wait for, since `seen`.
  void wait_for_progress(int64_t seen);

  const int64_t max_copy_bytes_;
  const int64_t block_bytes_;

  std::vector<Region> regions_;  // by address; unchanged between begin() and the next
  std::unique_ptr<Block[]> blocks_;
  size_t num_blocks_ = 0;

  mutable std::mutex mutex_;  // of all below; taken while a block is locked, never the other way
  std::condition_variable changed_;
  bool active_ = false;
  int64_t progress_ = 0;  // counts what a waiting change looks at again for
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::vector<std::byte*> free_;
  int64_t allocated_ = 0;
  int64_t copied_ = 0;
  int num_waiting_ = 0;
  int64_t waiting_since_ = 0;  // ns
  double waited_ = 0;
};

}  // namespace ferry
