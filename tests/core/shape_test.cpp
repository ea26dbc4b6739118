#include "core/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Shape, CountsItsElements) {
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{3, 4, 5}.numel()), 60);
  EXPECT_EQ((Shape{3, 0, 5}.numel()), 0);
  EXPECT_EQ((Shape{1 << 20, 1 << 20}.numel()), int64_t{1} << 40);
}

TEST(Shape, IndexesFromBothEnds) {
  const Shape shape{7, 8, 9};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 7);
  EXPECT_EQ(shape[-1], 9);
  EXPECT_EQ(shape[-3], 7);
  EXPECT_THAT([&] { shape[3]; }, ThrowsMessage<Error>(HasSubstr("dim 3 of a shape with 3 dims")));
  EXPECT_THAT([&] { shape[-4]; }, ThrowsMessage<Error>(HasSubstr("dim -4 of a shape with 3")));
}

TEST(Shape, ComparesAndPrints) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 0}));
  EXPECT_EQ(concat(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ(concat(Shape{}), "[]");
}

TEST(Shape, RefusesNegativeDimsAndMoreThanFour) {
  EXPECT_THAT([] { Shape({2, -1}); }, ThrowsMessage<Error>(HasSubstr("dim 1 is -1")));
  EXPECT_THAT(
      [] {
        Shape({1, 1, 1, 1, 1});
      },
      ThrowsMessage<Error>(HasSubstr("a shape has at most 4 dims")));
}

}  // namespace
}  // namespace ferry
