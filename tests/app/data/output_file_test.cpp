#include "app/data/output_file.h"

#include "app/data/mapped_file.h"
#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using testing::expect_error;
using testing::read_bytes;
using testing::TempDir;

std::span<const char> chars(const std::string& text) { return text; }

TEST(OutputFile, AppearsWhenPublished) {
  TempDir dir;
  const std::string large(3 << 20, 'x');  // more than the buffer
  {
    OutputFile file(dir / "a");
    file.write_values(chars("one "));
    file.write_values(chars(large));
    file.finish();
    EXPECT_FALSE(std::filesystem::exists(dir / "a"));
    file.publish();
  }
  EXPECT_EQ(read_bytes(dir / "a"), "one " + large);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(OutputFile, UnpublishedLeavesTheOldFile) {
  TempDir dir;
  testing::write_bytes(dir / "a", "old");
  {
    OutputFile file(dir / "a");
    file.write_values(chars("new"));
    file.finish();
  }
  EXPECT_EQ(read_bytes(dir / "a"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(OutputFile, NamesWhatItCannotReplace) {
  TempDir dir;
  std::filesystem::create_directories(dir / "a/b");
  OutputFile file(dir / "a");
  file.finish();
  expect_error(ExitCode::Storage, {"cannot rename to", "/a: "}, [&] { file.publish(); });
}

TEST(MappedFile, HoldsTheBytesAndMoves) {
  TempDir dir;
  testing::write_bytes(dir / "a", "bytes");
  MappedFile first(dir / "a");
  const MappedFile second(std::move(first));
  ASSERT_EQ(second.bytes().size(), 5u);
  EXPECT_EQ(second.bytes()[1], std::byte{'y'});
  EXPECT_TRUE(first.bytes().empty());
}

TEST(MappedFile, EmptyFilesAreEmpty) {
  TempDir dir;
  testing::write_bytes(dir / "a", "");
  EXPECT_TRUE(MappedFile(dir / "a").bytes().empty());
}

TEST(MappedFile, NamesWhatItCannotOpen) {
  TempDir dir;
  expect_error(ExitCode::Data, {"cannot open", "absent", "No such file"},
               [&] { MappedFile(dir / "absent"); });
  expect_error(ExitCode::Data, {"not a regular file"}, [&] { MappedFile(dir.path()); });
}

}  // namespace
}  // namespace ferry
