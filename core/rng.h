#pragma once

// Counter-based randomness. A number is a pure function of (seed, step, site, index): there is no
// state to save, recompute reproduces dropout, and results do not depend on the layout of ranks.
//
// Method: Philox4x32-10, J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
// Everything is constexpr, so the same code runs in CUDA kernels.

#include <array>
#include <cstdint>

namespace ferry {

/// Names one stream of random numbers: which run, which step, and which place in the model.
struct RandomKey {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t site = 0;  // e.g. a parameter's or a dropout's number

  constexpr RandomKey at_site(uint32_t new_site) const { return {seed, step, new_site}; }
};

/// Four random words for counter `index` under `key`.
constexpr std::array<uint32_t, 4> philox(const RandomKey& key, uint64_t index) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = key.step, c3 = key.site;
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// Uniform in [0, 1) with 24 bits, from one random word.
constexpr float uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Uniform in [0, 1) for element `index`: four neighbours share one philox call.
constexpr float uniform_at(const RandomKey& key, uint64_t index) {
  return uniform(philox(key, index / 4)[index % 4]);
}

}  // namespace ferry
