#include "huggingface/staged_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(StagedDirectory, AppearsWholeOrNotAtAll) {
  const testing::TempDir dir;
  {
    const StagedDirectory staged(dir / "out");
    write_text(posix_file_system(), staged.partial() / "file", "x");
    EXPECT_FALSE(fs::exists(dir / "out"));
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
  StagedDirectory staged(dir / "deep/out/");
  write_text(posix_file_system(), staged.partial() / "file", "x");
  staged.publish();
  EXPECT_TRUE(fs::exists(dir / "deep/out/file"));
  EXPECT_FALSE(fs::exists(dir / "deep/out.partial"));
}

TEST(StagedDirectory, OverwritesNothing) {
  const testing::TempDir dir;
  fs::create_directory(dir / "out");
  EXPECT_THAT(error_of([&] { StagedDirectory staged(dir / "out"); }),
              HasSubstr("nothing is overwritten"));
  fs::create_directory(dir / "other.partial");
  EXPECT_THAT(error_of([&] { StagedDirectory staged(dir / "other"); }),
              HasSubstr("2: error: " + (dir / "other.partial").string() + " is there already"));
  EXPECT_TRUE(fs::exists(dir / "other.partial"));
}

}  // namespace
}  // namespace ferry
