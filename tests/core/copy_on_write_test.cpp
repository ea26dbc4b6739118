#include "core/copy_on_write.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "core/check.h"

namespace ferry {
namespace {

constexpr int64_t kBlock = 8;

// Memory of three regions with a gap, whose bytes are their indices.
class CopyOnWriteTest : public ::testing::Test {
 protected:
  CopyOnWriteTest() {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::byte(i);
  }
  std::vector<std::span<const std::byte>> regions() const {
    const std::span<const std::byte> all(memory_);
    return {all.subspan(40, 60), all.subspan(0, 21), all.subspan(21, 8), all.subspan(200, 0)};
  }
  void change(CopyOnWrite& guard, size_t begin, size_t count) {
    guard.before_change(&memory_[begin], static_cast<int64_t>(count));
    std::fill_n(memory_.begin() + static_cast<int64_t>(begin), count, std::byte(255));
  }
  // True if the bytes read are those of the beginning.
  bool reads_old(CopyOnWrite& guard, size_t begin, size_t count) {
    std::vector<std::byte> read(count);
    guard.read(read.data(), &memory_[begin], static_cast<int64_t>(count));
    for (size_t i = 0; i < count; ++i)
      if (read[i] != std::byte(begin + i)) return false;
    return true;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(208);
};

TEST_F(CopyOnWriteTest, WhatChangesBeforeItIsReadIsCopiedOnce) {
  CopyOnWrite guard(1 << 20, kBlock);
  guard.begin(regions());
  EXPECT_TRUE(reads_old(guard, 0, 11));  // a block, and a part of one
  EXPECT_EQ(guard.copied_bytes(), 0);
  change(guard, 0, 8);  // was read
  EXPECT_EQ(guard.copied_bytes(), 0);
  change(guard, 8, 3);  // was read, but its block was not
  EXPECT_EQ(guard.copied_bytes(), kBlock);
  change(guard, 10, 90);  // all regions, and the gap between them
  EXPECT_EQ(guard.copied_bytes(), kBlock * (3 - 1 + 1 + 8));
  change(guard, 0, 208);
  EXPECT_EQ(guard.copied_bytes(), kBlock * (3 - 1 + 1 + 8));
  EXPECT_TRUE(reads_old(guard, 11, 10));
  EXPECT_TRUE(reads_old(guard, 21, 8));
  EXPECT_TRUE(reads_old(guard, 40, 13));
  EXPECT_TRUE(reads_old(guard, 53, 47));
  guard.end();
  EXPECT_EQ(guard.waited_seconds(), 0);
}

TEST_F(CopyOnWriteTest, NothingIsCopiedOutsideOfASave) {
  CopyOnWrite guard(1 << 20, kBlock);
  change(guard, 0, 100);
  guard.begin(regions());
  guard.end();
  change(guard, 0, 100);
  EXPECT_EQ(guard.copied_bytes(), 0);
}

TEST_F(CopyOnWriteTest, CanBeUsedAgain) {
  CopyOnWrite guard(1 << 20, kBlock);
  guard.begin(regions());
  change(guard, 0, 16);
  guard.end();  // with copies that nobody read
  for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::byte(i);
  guard.begin(regions());
  EXPECT_TRUE(reads_old(guard, 0, 16));
  guard.end();
}

TEST_F(CopyOnWriteTest, RefusesWrongUse) {
  CopyOnWrite guard(1 << 20, kBlock);
  guard.begin(regions());
  EXPECT_THROW(guard.begin(regions()), Error) << "begun twice";
  guard.end();
  guard.begin(regions());
  EXPECT_TRUE(reads_old(guard, 0, 8));
  EXPECT_THROW(reads_old(guard, 0, 8), Error) << "read twice";
  EXPECT_THROW(reads_old(guard, 150, 8), Error) << "not in a region";
  guard.end();
  const std::span<const std::byte> all(memory_);
  EXPECT_THROW(guard.begin({all.subspan(0, 10), all.subspan(9, 10)}), Error) << "overlap";
}

// With memory for no copy or for few, a change waits until the reader has passed.
TEST_F(CopyOnWriteTest, AChangeWaitsWhenMemoryIsUsedUp) {
  for (const int64_t max_copies : {0, 1, 3}) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::byte(i);
    CopyOnWrite guard(max_copies * kBlock, kBlock);
    guard.begin(regions());
    std::atomic<bool> changed = false;
    std::thread writer([&] {
      change(guard, 0, 100);
      changed = true;
    });
    EXPECT_FALSE(changed);  // cannot be: most was not read
    EXPECT_TRUE(reads_old(guard, 40, 60));
    EXPECT_TRUE(reads_old(guard, 0, 21));
    EXPECT_TRUE(reads_old(guard, 21, 8));
    writer.join();
    EXPECT_LE(guard.copied_bytes() / kBlock, max_copies == 0 ? 0 : 12);
    if (max_copies == 0) {
      EXPECT_EQ(guard.copied_bytes(), 0);
    }
    guard.end();
  }
}

TEST_F(CopyOnWriteTest, EndLetsAWaitingChangeGoOn) {
  CopyOnWrite guard(0, kBlock);
  guard.begin(regions());
  std::thread writer([&] { change(guard, 0, 100); });
  std::thread waits([&] { guard.wait_for_end(); });
  guard.end();
  writer.join();
  waits.join();
  guard.wait_for_end();
}

// Several readers and several writers on memory of many blocks.
TEST(CopyOnWriteThreads, ReadersSeeTheBeginning) {
  constexpr size_t kCount = 1 << 14;
  std::vector<int32_t> memory(kCount), seen(kCount), wanted(kCount);
  for (const int64_t max_copy_bytes : {int64_t{1} << 20, int64_t{256}, int64_t{0}}) {
    CopyOnWrite guard(max_copy_bytes, 64);
    for (int round = 0; round < 3; ++round) {
      std::iota(memory.begin(), memory.end(), round);
      wanted = memory;
      guard.begin({std::as_bytes(std::span(memory))});
      const auto each_part = [&](size_t first, const auto& visit) {
        for (size_t at = first * 50; at < kCount; at += 100)
          visit(&memory[at], std::min<size_t>(50, kCount - at), at);
      };
      std::vector<std::thread> threads;
      for (size_t half = 0; half < 2; ++half) {
        threads.emplace_back([&, half] {
          each_part(half, [&](const int32_t* data, size_t count, size_t at) {
            guard.read(&seen[at], data, static_cast<int64_t>(4 * count));
          });
        });
        threads.emplace_back([&, half] {
          each_part(half, [&](int32_t* data, size_t count, size_t) {
            guard.before_change(data, static_cast<int64_t>(4 * count));
            std::fill_n(data, count, -1);
          });
        });
      }
      for (std::thread& thread : threads) thread.join();
      guard.end();
      EXPECT_EQ(seen, wanted);
      EXPECT_EQ(std::count(memory.begin(), memory.end(), -1), std::ssize(memory));
    }
  }
}

}  // namespace
}  // namespace ferry
