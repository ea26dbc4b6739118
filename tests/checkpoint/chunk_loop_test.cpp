#include "checkpoint/chunk_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/check.h"

namespace ferry {
namespace {

TEST(ChunkLoop, EveryChunkOnceAndAsManyBuffersAsThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    std::mutex mutex;
    std::vector<int> calls(100);
    std::set<char*> buffers;
    for_each_chunk(threads, 100, 5000, [&](int64_t i, char* buffer) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer) % kBlockBytes, 0u);
      std::fill(buffer, buffer + 5000, static_cast<char>(i));
      const std::lock_guard lock(mutex);
      ++calls[static_cast<size_t>(i)];
      buffers.insert(buffer);
    });
    EXPECT_THAT(calls, ::testing::Each(1));
    EXPECT_LE(buffers.size(), static_cast<size_t>(threads));
    EXPECT_GE(buffers.size(), 1u);
  }
}

TEST(ChunkLoop, NothingToDo) {
  for_each_chunk(4, 0, 4096, [](int64_t, char*) { FAIL(); });
}

TEST(ChunkLoop, TheFirstErrorIsThrownWhicheverComesFirst) {
  for (int repetition = 0; repetition < 20; ++repetition) {
    try {
      for_each_chunk(4, 64, 8, [&](int64_t i, char*) {
        // The smaller index fails later.
        if (i == 9) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (i == 9 || i == 10 || i == 40) fail(ExitCode::Storage, "chunk ", i);
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "chunk 9");
    }
  }
}

TEST(ChunkLoop, WhatFollowsAnErrorIsLeftOut) {
  std::atomic<int> calls = 0;
  EXPECT_THROW(for_each_chunk(1, 1000, 8,
                              [&](int64_t i, char*) {
                                ++calls;
                                if (i == 3) fail(ExitCode::Storage, "no");
                              }),
               Error);
  EXPECT_EQ(calls, 4);
}

TEST(ChunkLoop, LittleIsDoneByOneThread) {
  EXPECT_EQ(choose_io_threads(0), 1);
  EXPECT_EQ(choose_io_threads(int64_t{16} << 20), 1);
  const int many = choose_io_threads(int64_t{1} << 40);
  EXPECT_GE(many, 2);
  EXPECT_LE(many, 8);
}

}  // namespace
}  // namespace ferry
