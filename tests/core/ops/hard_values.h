#pragma once

// Numbers on which two implementations of the same arithmetic are likely to differ, and their
// comparison bit for bit.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <source_location>
#include <vector>

#include "core/vector_level.h"
#include "tests/support/devices.h"

namespace ferry::testing {

/// The levels that this processor has, and FERRY_VECTOR_LEVEL allows.
inline std::vector<VectorLevel> vector_levels() {
  std::vector<VectorLevel> levels;
  for (const VectorLevel level : {VectorLevel::Portable, VectorLevel::Avx2, VectorLevel::Avx512})
    if (level <= vector_level()) levels.push_back(level);
  return levels;
}

/// Zeros, subnormal numbers, numbers near the limits, ties of BF16, infinities, NaNs with payloads.
inline std::vector<uint32_t> special_bits() {
  std::vector<uint32_t> bits;
  for (const uint32_t magnitude :
       {0x00000000u, 0x00000001u, 0x00000100u, 0x007fffffu, 0x00800000u, 0x3f800000u, 0x3f808000u,
        0x3f818000u, 0x3f817fffu, 0x3f818001u, 0x7f7fffffu, 0x7f7f8000u, 0x7f800000u, 0x7f800001u,
        0x7f80ffffu, 0x7fc00000u, 0x7fc12345u, 0x7fffffffu})
    for (const uint32_t sign : {0u, 0x80000000u}) bits.push_back(magnitude | sign);
  return bits;
}

/// Half of them special (as special_bits), half of them any bit pattern at all.
inline std::vector<float> hard_values(int64_t count, uint64_t seed) {
  const std::vector<uint32_t> special = special_bits();
  std::mt19937_64 generator(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    const uint64_t random = generator();
    const auto any = static_cast<uint32_t>(random >> 32);
    value = std::bit_cast<float>(random % 2 == 0 ? special[any % special.size()] : any);
  }
  return values;
}

/// The same values with one quiet NaN for all NaNs: devices differ in the payloads they make.
template <class T>
std::vector<T> with_one_nan(std::vector<T> values) {
  for (T& value : values)
    if (std::isnan(static_cast<compute_t<T>>(value))) value = T(compute_t<T>(NAN));
  return values;
}

/// Equal bit for bit; reports the first element that is not.
template <class T>
void expect_same_elements(const std::vector<T>& actual, const std::vector<T>& expected,
                          const char* name,
                          std::source_location where = std::source_location::current()) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto got = std::bit_cast<Bits>(actual[i]), want = std::bit_cast<Bits>(expected[i]);
    if (got == want) continue;
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
        << name << "[" << i << "] of " << actual.size() << " has bits " << std::hex << got
        << ", expected " << want;
    return;
  }
}

/// Rounds to S and hides the value from the compiler, so that no two operations can be fused.
template <class S>
S rounded(S value) {
  volatile S stored = value;
  return stored;
}

}  // namespace ferry::testing
