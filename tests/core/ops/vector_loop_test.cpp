#pragma GCC optimize("O3", "fp-contract=off")

#include "core/ops/vector_loop_cpu.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/core/ops/hard_values.h"

namespace ferry::testing {
namespace {

// Counts how often each element is computed, and where a value is stored.
template <class T, bool streams>
struct Count {
  using Value = T;
  static constexpr bool kStreams = streams;
  T* value;
  int32_t* calls;

  [[gnu::always_inline]] compute_t<T> at(int64_t i) const {
    calls[i] += 1;
    return static_cast<compute_t<T>>(i % 251);  // exact in BF16
  }
  [[gnu::always_inline]] void prefetch(int64_t) const {}
};

template <class T, bool streams>
void expect_each_element_once() {
  for (const VectorLevel level : vector_levels())
    for (const int64_t n : {0, 1, 31, 32, 33, 16383, 16384, 16447, 20000})
      for (const int64_t offset : {0, 1, 5, 31}) {
        SCOPED_TRACE(concat(name_of(level), ", ", n, " elements from ", offset));
        const auto size = static_cast<size_t>(n + 2 * offset + 1);
        const T untouched = T(compute_t<T>(-7));
        std::vector<T> value(size, untouched);
        std::vector<int32_t> calls(size, 0);
        cpu::run_loop(level, Count<T, streams>{value.data() + offset, calls.data() + offset}, n);
        for (int64_t i = 0; i < static_cast<int64_t>(size); ++i) {
          const bool inside = i >= offset && i < offset + n;
          const auto k = static_cast<size_t>(i);
          ASSERT_EQ(calls[k], inside ? 1 : 0) << i;
          const auto expected = inside ? static_cast<compute_t<T>>((i - offset) % 251)
                                       : static_cast<compute_t<T>>(untouched);
          ASSERT_EQ(static_cast<compute_t<T>>(value[k]), expected) << i;
        }
      }
}

TEST(VectorLoop, ComputesEachElementOnce) {
  expect_each_element_once<BFloat16, false>();
  expect_each_element_once<float, false>();
  expect_each_element_once<double, false>();
}

TEST(VectorLoop, StreamsEachElementOnce) {
  expect_each_element_once<BFloat16, true>();
  expect_each_element_once<float, true>();
  expect_each_element_once<double, true>();
}

TEST(VectorLoop, RoundsAsBFloat16Does) {
  std::vector<float> values = hard_values(100000, 1);
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  std::vector<BFloat16> rounded, expected;
  for (const float value : values) {
    rounded.push_back(cpu::rounded_to<BFloat16>(value));
    expected.push_back(BFloat16(value));
  }
  expect_same_elements(rounded, expected, "bf16");
}

}  // namespace
}  // namespace ferry::testing
