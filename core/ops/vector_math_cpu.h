#pragma once

// Arithmetic in forms that a compiler turns into vector instructions without -ffast-math, so that
// results stay the same for every compiler setting that keeps IEEE 754.

#include <bit>
#include <cmath>
#include <cstdint>

namespace ferry::cpu {

/// e^x with a relative error below 2e-7; 0 below -87.33 (no subnormal results) and infinite above
/// 88.37. Method and coefficients: expf of Cephes (S. Moshier).
inline float fast_exp(float x) {
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
  constexpr float kRound = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r * r + r) + 1.0f;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);
  // Masks instead of ?:, which g++ would make a branch that it does not vectorise. NaN passes both.
  const uint32_t result = std::bit_cast<uint32_t>(p * power);
  const uint32_t not_too_small = 0u - static_cast<uint32_t>(!(x < -87.33f));
  const uint32_t too_big = 0u - static_cast<uint32_t>(x > 88.37f);
  return std::bit_cast<float>((result & not_too_small & ~too_big) | (0x7f800000u & too_big));
}
inline double fast_exp(double x) { return std::exp(x); }

/// 1 / (1 + e^-x).
template <class S>
S sigmoid(S x) {
  return S{1} / (S{1} + fast_exp(-x));
}

/// The sum of term(i) for i in [0, n), always in the same order: 16 interleaved partial sums, added
/// pairwise at the end.
template <class S, class Term>
S lane_sum(int64_t n, const Term& term) {
  constexpr int kLanes = 16;
  S lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  const int64_t rest = n - i;
  for (int64_t lane = 0; lane < rest; ++lane) lanes[lane] += term(i + lane);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace ferry::cpu
