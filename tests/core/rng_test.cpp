#include "core/rng.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

namespace ferry {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers of philox4x32 with 10 rounds, published with Random123 (kat_vectors). Its counter
// is {index low, index high, step, site}, its key {seed low, seed high}.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~uint64_t{0}, ~0u, ~0u}, ~uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x299f31d0a4093822, 0x13198a2e, 0x03707344}, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

static_assert(philox({0, 0, 0}, 0)[0] == 0x6627e8d5, "usable at compile time, as in kernels");

TEST(Philox, EveryPartOfTheKeyMatters) {
  const std::set<Words> words{philox({1, 2, 3}, 4),
                              philox({2, 2, 3}, 4),
                              philox({1 + (uint64_t{1} << 32), 2, 3}, 4),
                              philox({1, 3, 3}, 4),
                              philox({1, 2, 4}, 4),
                              philox({1, 2, 3}, 5),
                              philox({1, 2, 3}, 4 + (uint64_t{1} << 32))};
  EXPECT_EQ(words.size(), 7u);
}

TEST(Uniform, IsInTheHalfOpenInterval) {
  EXPECT_EQ(uniform(0), 0.0f);
  EXPECT_EQ(uniform(255), 0.0f);
  EXPECT_EQ(uniform(~0u), 1 - 0x1p-24f);
}

TEST(Uniform, FourNeighboursShareACall) {
  const RandomKey key{5, 6, 7};
  for (uint64_t index = 0; index < 12; ++index)
    EXPECT_EQ(uniform_at(key, index), uniform(philox(key, index / 4)[index % 4]));
}

// The mean of n uniforms deviates by 1/sqrt(12 n) = 0.0009; the seed is fixed, so this never
// flakes.
TEST(Uniform, HasTheMeanOfAUniform) {
  double sum = 0;
  for (uint64_t index = 0; index < 100000; ++index) sum += uniform_at({1, 2, 3}, index);
  EXPECT_NEAR(sum / 100000, 0.5, 0.003);
}

TEST(RandomKey, AtSiteChangesTheSiteOnly) {
  const RandomKey key = RandomKey{5, 6, 7}.at_site(8);
  EXPECT_EQ(key.seed, 5u);
  EXPECT_EQ(key.step, 6u);
  EXPECT_EQ(key.site, 8u);
}

}  // namespace
}  // namespace ferry
