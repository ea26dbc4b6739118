#include "huggingface/mapped_floats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

TEST(MappedFloats, HoldsValuesInAFileWithoutAName) {
  const testing::TempDir dir;
  MappedFloats values = MappedFloats::in_file(dir.path(), 3000);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  for (int i = 0; i < 3000; ++i) {
    EXPECT_EQ(values.data()[i], 0.0f);
    values.data()[i] = static_cast<float>(i);
  }
  const MappedFloats moved = std::move(values);
  EXPECT_EQ(moved.data()[2999], 2999.0f);
}

TEST(MappedFloats, ZerosAreZero) {
  const MappedFloats zeros = MappedFloats::zeros(5000);
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(zeros.data()[i], 0.0f);
}

TEST(MappedFloats, AFullOrMissingDirectoryIsAnError) {
  const testing::TempDir dir;
  EXPECT_THAT(testing::error_of([&] { MappedFloats::in_file(dir / "no", 1); }),
              HasSubstr("4: error: cannot make a file in"));
  EXPECT_THAT(testing::error_of([&] { MappedFloats::in_file(dir.path(), int64_t{1} << 60); }),
              HasSubstr("4: error: cannot reserve"));
}

}  // namespace
}  // namespace ferry
