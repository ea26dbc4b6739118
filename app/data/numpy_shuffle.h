#pragma once

// The shuffle of numpy's RandomState, bit for bit, so that sample orders equal Megatron-LM's.
// RandomState(seed) with a 32-bit seed is std::mt19937(seed).

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace ferry {

/// Uniform in [0, largest] by rejection under a mask of ones.
inline uint64_t draw_up_to(std::mt19937& rng, uint64_t largest) {
  uint64_t mask = largest;
  for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
  const auto draw = [&]() -> uint64_t {
    if (largest <= 0xffffffffull) return rng();
    const uint64_t high = rng();
    return high << 32 | rng();
  };
  uint64_t value;
  do value = draw() & mask;
  while (value > largest);
  return value;
}

template <class T>
void numpy_shuffle(std::mt19937& rng, std::span<T> values) {
  for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[draw_up_to(rng, i)]);
}

}  // namespace ferry
