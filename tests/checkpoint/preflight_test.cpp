#include "checkpoint/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/checkpoint/saved_runs.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using testing::Fault;
using testing::FaultyFileSystem;
using ::testing::HasSubstr;
using testing::storage_error;
using testing::TempDir;

TEST(Preflight, SpaceHasAFifthInReserve) {
  const TempDir dir;
  FaultyFileSystem storage;
  storage.set_status({.free_bytes = 1200, .free_files = 10, .type = "ext4"});
  EXPECT_NO_THROW(require_storage(storage, dir.path(), 1000, 10));
  storage.set_status({.free_bytes = 1199, .free_files = 10, .type = "ext4"});
  EXPECT_THAT(
      storage_error([&] { require_storage(storage, dir.path(), 1000, 10); }),
      HasSubstr("not enough space in " + dir.path().native() + ": a checkpoint needs 0.000"));
}

TEST(Preflight, InodesAreCounted) {
  const TempDir dir;
  FaultyFileSystem storage;
  storage.set_status({.free_bytes = 1 << 20, .free_files = 9, .type = "ext4"});
  EXPECT_EQ(storage_error([&] { require_storage(storage, dir.path(), 1000, 10); }),
            "not enough inodes in " + dir.path().native() +
                ": a checkpoint needs 10 files and directories, 9 may be made, quotas included; "
                "remove files, or lower checkpoint.keep");
  // And before a save writes anything.
  testing::begin(dir.path());
  testing::SaveOptions options;
  options.file_system = &storage;
  storage.set_status({.free_bytes = 1 << 30, .free_files = 3, .type = "ext4"});
  EXPECT_THAT(
      storage_error([&] { testing::save_solo(dir.path(), testing::SampleModel(), options); }),
      HasSubstr("not enough inodes in " + (dir.path() / "ckpt").native()));
  EXPECT_THAT(storage.operations(), ::testing::Not(::testing::Contains(HasSubstr("mkdir"))));
}

TEST(Preflight, TheProbeLeavesNothing) {
  const TempDir dir;
  FaultyFileSystem storage;
  probe_storage(storage, dir.path());
  EXPECT_THAT(storage.operations(),
              ElementsAre("create probe", "write probe", "fsync probe", "close probe",
                          "rename probe", "fsync " + dir.path().filename().native(), "open renamed",
                          "fstat renamed", "read renamed", "unlink renamed"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Preflight, AProbeThatFailsIsReported) {
  FaultyFileSystem counting;
  const TempDir counted;
  probe_storage(counting, counted.path());
  for (int i = 0; i < static_cast<int>(counting.operations().size()); ++i) {
    if (counting.operations()[static_cast<size_t>(i)].starts_with("fsync ferry-test")) continue;
    const TempDir dir;
    FaultyFileSystem storage(i, Fault::Fail);
    EXPECT_THAT(storage_error([&] { probe_storage(storage, dir.path()); }),
                HasSubstr("injected error"))
        << counting.operations()[static_cast<size_t>(i)];
  }
  const TempDir dir;
  FaultyFileSystem lying(8, Fault::Lie);
  EXPECT_EQ(storage_error([&] { probe_storage(lying, dir.path()); }),
            dir.path().native() + " does not return what was written to it");
}

TEST(Preflight, EachSaveIsProbedBeforeItsShardsAreWritten) {
  const TempDir dir;
  testing::begin(dir.path());
  FaultyFileSystem storage;
  testing::SaveOptions options;
  options.file_system = &storage;
  testing::save_solo(dir.path(), testing::SampleModel(), options);
  const auto& names = storage.operations();
  const auto probe = std::find(names.begin(), names.end(), "read renamed");
  ASSERT_NE(probe, names.end());
  EXPECT_LT(probe, std::find(names.begin(), names.end(), "create shard-00000.h5"));
}

TEST(Preflight, NoticesSayWhatToDo) {
  const auto notice = [](const std::string& type) {
    const std::vector<std::string> notices = storage_notices(type, "run/ckpt");
    return notices.empty() ? "" : notices.front();
  };
  for (const char* quiet : {"ext4", "xfs", "btrfs", "zfs", "gpfs", "beegfs"})
    EXPECT_EQ(notice(quiet), "") << quiet;
  EXPECT_EQ(notice("tmpfs"),
            "run/ckpt is on tmpfs: checkpoints are lost when this machine restarts, and take up "
            "its memory");
  EXPECT_THAT(notice("overlay"), HasSubstr("gone with the container"));
  EXPECT_THAT(notice("nfs"), HasSubstr("unless its export is `sync` and the mount `hard`"));
  EXPECT_THAT(notice("fuse"), HasSubstr("up to the program that serves it"));
  EXPECT_THAT(notice("lustre"), HasSubstr("`lfs setstripe -c 4 -S 4M run/ckpt`"));
  EXPECT_THAT(notice("0x1234"), HasSubstr("run/ckpt is on 0x1234: this type is not known here"));
}

TEST(Preflight, AStartHasTheNoticesOfItsStorage) {
  const TempDir dir;
  FaultyFileSystem storage;
  storage.set_status({.free_bytes = 1 << 20, .free_files = 100, .type = "tmpfs"});
  SoloControl control;
  EXPECT_THAT(begin_attempt(dir.path(), control, storage).notices,
              ElementsAre(HasSubstr("is on tmpfs")));
}

}  // namespace
}  // namespace ferry
