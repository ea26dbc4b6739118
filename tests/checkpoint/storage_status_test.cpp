#include "checkpoint/storage_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <filesystem>

#include "tests/checkpoint/sample_model.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::storage_error;
using testing::TempDir;

TEST(StorageStatus, TypesHaveNames) {
  EXPECT_EQ(file_system_name(0xef53), "ext4");
  EXPECT_EQ(file_system_name(0x6969), "nfs");
  EXPECT_EQ(file_system_name(0x0bd00bd0), "lustre");
  EXPECT_EQ(file_system_name(0x12345678), "0x12345678");
}

TEST(StorageStatus, IsThatOfTheSystem) {
  const TempDir dir;
  const StorageStatus status = storage_status(dir.path());
  EXPECT_GT(status.free_files, 0);
  EXPECT_LE(status.free_bytes,
            static_cast<int64_t>(std::filesystem::space(dir.path()).available) + (1 << 30));
  EXPECT_GT(status.free_bytes, 0);
  EXPECT_FALSE(status.type.empty());
  EXPECT_EQ(storage_status("/proc").type, "0x9fa0");
  EXPECT_EQ(storage_error([&] { storage_status(dir / "absent"); }),
            "cannot ask for the free space of " + (dir / "absent").native() +
                ": No such file or directory");
}

TEST(StorageStatus, KnowsASmallFileSystemInMemory) {
  // In a mount namespace of its own, where the machine allows that.
  const TempDir dir;
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=64k,nr_inodes=10") != 0) {
    GTEST_SKIP() << "this user may not mount a small file system";
  }
  const StorageStatus status = storage_status(dir.path());
  EXPECT_EQ(::umount(dir.path().c_str()), 0);
  EXPECT_EQ(status.type, "tmpfs");
  EXPECT_EQ(status.free_bytes, 64 << 10);
  EXPECT_EQ(status.free_files, 9);
}

}  // namespace
}  // namespace ferry
