#include "app/nearest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(Nearest, DivisorsAndMultiples) {
  EXPECT_EQ(nearest_divisors(64, 6), "4 or 8");
  EXPECT_EQ(nearest_divisors(64, 100), "64");
  EXPECT_EQ(nearest_divisors(7, 2), "1 or 7");
  EXPECT_EQ(nearest_divisors(8, 8), "8");
  EXPECT_EQ(nearest_multiples(8, 15), "8 or 16");
  EXPECT_EQ(nearest_multiples(8, 3), "8");
  EXPECT_EQ(nearest_multiples(8, 16), "16");
}

}  // namespace
}  // namespace ferry
