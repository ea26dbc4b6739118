#pragma once

// The legal numbers nearest to an illegal one, for "try" lines.

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace ferry {

/// The divisors of `number` nearest to `value` from below and above: "4 or 8".
inline std::string nearest_divisors(int64_t number, int64_t value) {
  int64_t below = 0;
  int64_t above = 0;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    for (const int64_t divisor : {i, number / i}) {
      if (divisor <= value && divisor > below) below = divisor;
      if (divisor >= value && (above == 0 || divisor < above)) above = divisor;
    }
  }
  if (above == 0 || above == below) return std::to_string(below);
  return below == 0 ? std::to_string(above) : fmt::format("{} or {}", below, above);
}

/// The positive multiples of `factor` nearest to `value` from below and above: "48 or 64".
inline std::string nearest_multiples(int64_t factor, int64_t value) {
  const int64_t below = value / factor * factor;
  if (below == 0) return std::to_string(factor);
  return below == value ? std::to_string(value) : fmt::format("{} or {}", below, below + factor);
}

}  // namespace ferry
