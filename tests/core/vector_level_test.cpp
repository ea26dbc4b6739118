#include "core/vector_level.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "core/check.h"

namespace ferry {
namespace {

TEST(VectorLevel, HasANameForEach) {
  EXPECT_EQ(name_of(VectorLevel::Portable), "portable");
  EXPECT_EQ(name_of(VectorLevel::Avx2), "avx2");
  EXPECT_EQ(name_of(VectorLevel::Avx512), "avx512");
}

TEST(VectorLevel, OrdersByWidth) {
  EXPECT_LT(VectorLevel::Portable, VectorLevel::Avx2);
  EXPECT_LT(VectorLevel::Avx2, VectorLevel::Avx512);
}

// The level is decided once in a process, so each case runs in a process of its own.
class VectorLevelOfEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[noreturn]] static void print_level(const char* wanted) {
    if (wanted == nullptr ? unsetenv("FERRY_VECTOR_LEVEL") != 0
                          : setenv("FERRY_VECTOR_LEVEL", wanted, 1) != 0)
      std::exit(99);
    try {
      std::cerr << "level " << name_of(vector_level()) << "\n";
    } catch (const Error& error) {
      std::cerr << error.what() << "\n";
      std::exit(static_cast<int>(error.code()));
    }
    std::exit(0);
  }
};

const char* widest_here() {
  if (__builtin_cpu_supports("avx512f")) return "level avx512";
  return __builtin_cpu_supports("avx2") ? "level avx2" : "level portable";
}

TEST_F(VectorLevelOfEnvironment, IsTheWidestWithoutAWish) {
  EXPECT_EXIT(print_level(nullptr), ::testing::ExitedWithCode(0), widest_here());
}

TEST_F(VectorLevelOfEnvironment, IsAtMostTheWish) {
  EXPECT_EXIT(print_level("portable"), ::testing::ExitedWithCode(0), "level portable");
  EXPECT_EXIT(print_level("avx512"), ::testing::ExitedWithCode(0), widest_here());
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  EXPECT_EXIT(print_level("avx2"), ::testing::ExitedWithCode(0), "level avx2");
}

TEST_F(VectorLevelOfEnvironment, RefusesAnotherName) {
  EXPECT_EXIT(print_level("sse9"), ::testing::ExitedWithCode(2),
              "FERRY_VECTOR_LEVEL is 'sse9'(.|\n)*portable, avx2 or avx512");
  EXPECT_EXIT(print_level(""), ::testing::ExitedWithCode(2), "FERRY_VECTOR_LEVEL is ''");
}

}  // namespace
}  // namespace ferry
