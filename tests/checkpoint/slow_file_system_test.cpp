#include "checkpoint/slow_file_system.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

// It takes at least as long as the limit says; how much longer is the machine's business.
TEST(SlowFileSystem, LimitsWritesAndPassesEverythingOn) {
  testing::TempDir dir;
  SlowFileSystem disk(posix_file_system(), 1e6);
  const auto start = std::chrono::steady_clock::now();
  disk.make_directory(dir / "a");
  const std::string text(20000, 'x');
  write_text(disk, dir / "a/b", text.substr(0, 10000));
  write_text(disk, dir / "a/c", text);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
  disk.rename(dir / "a/b", dir / "a/d");
  disk.sync_directory(dir / "a");
  EXPECT_EQ(read_text(disk, dir / "a/c", 20000), text);
  EXPECT_TRUE(disk.exists(dir / "a/d"));
  EXPECT_EQ(disk.list(dir / "a").size(), 2u);
  EXPECT_GT(disk.status(dir / "a").free_bytes, 0);
  disk.remove_file(dir / "a/c");
  disk.remove_file(dir / "a/d");
  disk.remove_directory(dir / "a");
  EXPECT_FALSE(disk.exists(dir / "a"));
}

}  // namespace
}  // namespace ferry
