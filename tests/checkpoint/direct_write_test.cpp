#include "checkpoint/direct_write.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

std::string content(const Path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class DirectWriteTest : public ::testing::Test {
 protected:
  DirectWriteTest() : memory_(6 * kBlockBytes) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    aligned_ = memory_.data() + (kBlockBytes - static_cast<int64_t>(address % kBlockBytes));
    for (int64_t i = 0; i < 5 * kBlockBytes; ++i) aligned_[i] = static_cast<char>(i * 7 + i / 251);
  }
  std::string at(int64_t begin, int64_t bytes) const {
    return {aligned_ + begin, static_cast<size_t>(bytes)};
  }

  testing::TempDir dir_;
  std::vector<char> memory_;
  char* aligned_ = nullptr;
};

TEST_F(DirectWriteTest, WholeBlocksOrNothing) {
  const Path path = dir_ / "file";
  write_text(posix_file_system(), path, "");
  DirectWrite direct;
  EXPECT_EQ(direct.write(path, aligned_, kBlockBytes - 1, 0), 0);
  EXPECT_EQ(direct.write(path, aligned_ + 1, kBlockBytes, 0), 0);
  EXPECT_EQ(direct.write(path, aligned_, kBlockBytes, 8), 0);
  EXPECT_EQ(content(path), "");
  const int64_t written = direct.write(path, aligned_, 2 * kBlockBytes + 5, kBlockBytes);
  if (written == 0) GTEST_SKIP() << "this file system has no direct writes";
  EXPECT_EQ(written, 2 * kBlockBytes);
  EXPECT_EQ(content(path), std::string(kBlockBytes, '\0') + at(0, 2 * kBlockBytes));
}

TEST_F(DirectWriteTest, AFileIsTheSameAtAnyPlaceAndLength) {
  int count = 0;
  for (const int64_t place : {int64_t{0}, int64_t{24}, kBlockBytes - 1, kBlockBytes}) {
    for (const int64_t shift : {int64_t{0}, int64_t{24}}) {  // equal places in a block or not
      for (const int64_t bytes : {int64_t{0}, int64_t{3}, kBlockBytes, 3 * kBlockBytes + 100}) {
        const Path path = dir_ / std::to_string(++count);
        const auto file = posix_file_system().create(path);
        file->write_at("before", 6, 0);
        file->write_direct(aligned_ + shift, static_cast<size_t>(bytes), place);
        file->write_at("after", 5, place + bytes);
        file->sync();
        file->close();
        std::string expected("before");
        expected.resize(static_cast<size_t>(std::max<int64_t>(6, place + bytes)));
        expected.replace(static_cast<size_t>(place), static_cast<size_t>(bytes), at(shift, bytes));
        expected.resize(std::max(expected.size(), static_cast<size_t>(place + bytes + 5)));
        expected.replace(static_cast<size_t>(place + bytes), 5, "after");
        ASSERT_EQ(content(path), expected) << place << " " << shift << " " << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace ferry
