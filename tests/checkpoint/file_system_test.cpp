#include "checkpoint/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/checkpoint/sample_model.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::storage_error;
using testing::TempDir;

FileSystem& fs() { return posix_file_system(); }

unsigned mode_of(const Path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(FileSystem, FilesRoundTripWithNarrowModes) {
  const TempDir dir;
  const mode_t before = ::umask(0);
  write_text(fs(), dir / "file", "content");
  fs().make_directory(dir / "sub");
  ::umask(before);
  EXPECT_EQ(read_text(fs(), dir / "file", 7), "content");
  EXPECT_EQ(mode_of(dir / "file"), 0640u);
  EXPECT_EQ(mode_of(dir / "sub"), 0750u);
}

TEST(FileSystem, ErrorsNamePathReasonAndRemedy) {
  const TempDir dir;
  const std::string path = (dir / "file").native();
  EXPECT_EQ(storage_error([&] { fs().open(dir / "file"); }),
            "cannot open " + path + ": No such file or directory");
  write_text(fs(), dir / "file", "content");
  EXPECT_EQ(storage_error([&] { fs().create(dir / "file"); }),
            "cannot create " + path + ": File exists; another run may be using the directory");
  EXPECT_EQ(storage_error([&] { fs().make_directory(dir / "file"); }),
            "cannot create the directory " + path +
                ": File exists; another run may be using the directory");
  EXPECT_EQ(storage_error([&] { fs().list(dir / "file"); }),
            "cannot list the directory " + path + ": Not a directory");
  EXPECT_EQ(
      storage_error([&] { fs().rename(dir / "absent", dir / "file"); }),
      "cannot rename " + (dir / "absent").native() + " to " + path + ": No such file or directory");
  EXPECT_THAT(storage_error([&] { fs().open(dir.path()); }), HasSubstr("is not a regular file"));
  EXPECT_THAT(storage_error([&] { read_text(fs(), dir / "file", 6); }),
              HasSubstr("has 7 bytes; at most 6 are read"));
  char byte = 0;
  EXPECT_THAT(storage_error([&] { fs().open(dir / "file")->read_at(&byte, 1, 7); }),
              HasSubstr("ends at byte 7, 1 bytes too early: it is truncated"));
  EXPECT_THAT(storage_error([&] { fs().open(dir / "file")->write_at(&byte, 1, 0); }),
              HasSubstr("cannot write " + path));
}

/// Whatever is written beyond `bytes` of a file fails in this process while the object lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(FileSystem, AWriteThatTheSystemCutsShortIsAnError) {
  const TempDir dir;
  const std::string text(3000, 'x');
  const FileSizeLimit limit(2000);
  EXPECT_EQ(storage_error([&] { write_text(fs(), dir / "file", text); }),
            "cannot write " + (dir / "file").native() + ": File too large");
  EXPECT_EQ(std::filesystem::file_size(dir / "file"), 2000u);
}

TEST(FileSystem, AFullDiskSaysSo) {
  // A file system of 64 KiB in a mount namespace of its own, where the machine allows that.
  const TempDir dir;
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "this user may not mount a small file system";
  }
  const std::string message =
      storage_error([&] { write_text(fs(), dir / "file", std::string(1 << 20, 'x')); });
  EXPECT_EQ(::umount(dir.path().c_str()), 0);
  EXPECT_EQ(
      message,
      "cannot write " + (dir / "file").native() +
          ": No space left on device; the disk is full: free space, or keep fewer checkpoints");
}

TEST(FileSystem, RemoveTreeDoesNotFollowLinks) {
  const TempDir dir;
  fs().make_directory(dir / "kept");
  write_text(fs(), dir.path() / "kept" / "file", "content");
  make_directories(fs(), dir.path() / "tree" / "deep");
  write_text(fs(), dir.path() / "tree" / "deep" / "file", "content");
  std::filesystem::create_directory_symlink(dir / "kept", dir.path() / "tree" / "link");
  remove_tree(fs(), dir / "tree");
  EXPECT_FALSE(fs().exists(dir / "tree"));
  EXPECT_TRUE(fs().exists(dir.path() / "kept" / "file"));
}

}  // namespace
}  // namespace ferry
