#include "core/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>

namespace ferry {
namespace {

BFloat16 from_bits(uint32_t bits) {
  BFloat16 value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::F64), 8u);
  EXPECT_EQ(size_of(DType::BF16), sizeof(BFloat16));
  EXPECT_EQ(size_of(DType::U8), 1u);
  EXPECT_EQ(name_of(DType::BF16), "bf16");
  EXPECT_EQ(name_of(DType::I64), "i64");
  EXPECT_EQ(accumulate_dtype(DType::BF16), DType::F32);
  EXPECT_EQ(accumulate_dtype(DType::F64), DType::F64);
}

TEST(DType, DispatchesOnFloatsOnly) {
  const auto size = [](DType dtype) {
    return dispatch_float(dtype, []<class T>() { return sizeof(T); });
  };
  EXPECT_EQ(size(DType::F32), 4u);
  EXPECT_EQ(size(DType::F64), 8u);
  EXPECT_EQ(size(DType::BF16), 2u);
  EXPECT_THAT([&] { size(DType::I32); },
              ::testing::ThrowsMessage<Error>("a floating-point dtype is needed, not i32"));
}

TEST(BFloat16, EveryNumberSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_bits(bits);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(value)))) << bits;
    else
      EXPECT_EQ(BFloat16(value).bits, bits);
  }
}

TEST(BFloat16, RoundsToNearestTiesToEven) {
  const uint32_t one = 0x3f80;
  const float ulp = 0x1p-7f;
  EXPECT_EQ(BFloat16(1 + ulp * 0.49f).bits, one);
  EXPECT_EQ(BFloat16(1 + ulp * 0.5f).bits, one);  // tie, down to even
  EXPECT_EQ(BFloat16(1 + ulp * 0.51f).bits, one + 1);
  EXPECT_EQ(BFloat16(1 + ulp * 1.5f).bits, one + 2);  // tie, up to even
  EXPECT_EQ(BFloat16(-(1 + ulp * 1.5f)).bits, (one + 2) | 0x8000);
  EXPECT_EQ(BFloat16(1.0 + 0x1p-8 + 0x1p-20).bits, one + 1);
}

TEST(BFloat16, KeepsInfinitiesSignsAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(BFloat16(infinity)), infinity);
  EXPECT_EQ(static_cast<float>(BFloat16(std::numeric_limits<float>::max())), infinity);
  EXPECT_EQ(BFloat16(-0.0f).bits, 0x8000);
  // A NaN whose payload is only in the lower half must not become an infinity.
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0xffffffffu)))));
}

static_assert(std::is_same_v<compute_t<BFloat16>, float>);
static_assert(std::is_same_v<compute_t<double>, double>);

}  // namespace
}  // namespace ferry
