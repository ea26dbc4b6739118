#include "moe/forced_routing.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;

std::vector<int64_t> load(const std::vector<int32_t>& chosen, int64_t experts) {
  std::vector<int64_t> counts(static_cast<size_t>(experts));
  for (const int32_t expert : chosen) ++counts.at(static_cast<size_t>(expert));
  return counts;
}

void expect_distinct_choices(const std::vector<int32_t>& chosen, size_t top_k) {
  for (size_t at = 0; at < chosen.size(); at += top_k)
    ASSERT_EQ(std::set<int32_t>(chosen.begin() + static_cast<std::ptrdiff_t>(at),
                                chosen.begin() + static_cast<std::ptrdiff_t>(at + top_k))
                  .size(),
              top_k)
        << "token " << at / top_k;
}

class ForcedRoutingTest : public CpuTest {
 protected:
  // The bias of one token.
  std::vector<double> bias_row(const std::string& mode, DType dtype = DType::F32) {
    ForcedRouting forced(mode, 4, 2, 1);
    return read_back_as_double(stream(), forced.bias(stream(), 0, 1, dtype));
  }
};

TEST_F(ForcedRoutingTest, NoneIsNotActive) {
  EXPECT_FALSE(ForcedRouting("none", 8, 2, 1).active());
  EXPECT_FALSE(ForcedRouting("", 8, 2, 1).active());
  EXPECT_TRUE(ForcedRouting("balanced", 8, 2, 1).active());
}

TEST_F(ForcedRoutingTest, BalancedTakesTurns) {
  const ForcedRouting forced("balanced", 6, 4, 1);
  EXPECT_EQ(forced.choose(0, 3), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
}

TEST_F(ForcedRoutingTest, UniformRandomIsUniform) {
  const ForcedRouting forced("uniform_random", 8, 3, 1);
  const std::vector<int32_t> chosen = forced.choose(0, 8000);
  expect_distinct_choices(chosen, 3);
  // 3000 tokens each, 5 standard deviations.
  for (const int64_t count : load(chosen, 8))
    EXPECT_NEAR(count, 3000, 5 * std::sqrt(3000.0 * 5 / 8));
  EXPECT_EQ(ForcedRouting("uniform_random", 8, 3, 1).choose(0, 8000), chosen);
  EXPECT_NE(ForcedRouting("uniform_random", 8, 3, 2).choose(0, 8000), chosen);
}

TEST_F(ForcedRoutingTest, PowerLawFollowsItsExponent) {
  const std::vector<int32_t> one = ForcedRouting("power_law:1.5", 5, 1, 1).choose(0, 20000);
  double sum = 0;
  for (int e = 1; e <= 5; ++e) sum += std::pow(e, -1.5);
  const std::vector<int64_t> counts = load(one, 5);
  for (int e = 1; e <= 5; ++e) {
    const double share = std::pow(e, -1.5) / sum;
    EXPECT_NEAR(counts[static_cast<size_t>(e) - 1], 20000 * share,
                5 * std::sqrt(20000 * share * (1 - share)))
        << e;
  }
  const std::vector<int32_t> three = ForcedRouting("power_law:1.5", 5, 3, 1).choose(0, 2000);
  expect_distinct_choices(three, 3);
  const std::vector<int64_t> loads = load(three, 5);
  EXPECT_TRUE(std::is_sorted(loads.rbegin(), loads.rend()));
  EXPECT_EQ(ForcedRouting("power_law:0", 5, 3, 1).choose(0, 2000),
            ForcedRouting("uniform_random", 5, 3, 1).choose(0, 2000));
}

TEST_F(ForcedRoutingTest, BiasOfEachMode) {
  constexpr double kNo = -1e5;
  for (const DType dtype : {DType::F32, DType::F64}) {
    EXPECT_EQ(bias_row("balanced", dtype), (std::vector<double>{0, 0, kNo, kNo}));
    EXPECT_EQ(bias_row("all_to:[3,1]", dtype), (std::vector<double>{kNo, 0, kNo, 0}));
    EXPECT_EQ(bias_row("all_to:[ 0 , 2, 3 ]", dtype), (std::vector<double>{0, kNo, 0, 0}));
    EXPECT_EQ(bias_row("skip:[1]", dtype), (std::vector<double>{0, kNo, 0, 0}));
  }
  for (const char* mode : {"uniform_random", "power_law:1.2"}) {
    ForcedRouting forced(mode, 5, 2, 1);
    const std::vector<int32_t> chosen = forced.choose(0, 7);
    std::vector<double> want(7 * 5, kNo);
    for (size_t slot = 0; slot < 14; ++slot)
      want[slot / 2 * 5 + static_cast<size_t>(chosen[slot])] = 0;
    EXPECT_EQ(read_back_as_double(stream(), forced.bias(stream(), 0, 7, DType::F32)), want) << mode;
  }
}

TEST_F(ForcedRoutingTest, BiasIsMadeOncePerNumberOfTokens) {
  ForcedRouting forced("balanced", 4, 2, 1);
  const Tensor first = forced.bias(stream(), 0, 3, DType::F32);
  EXPECT_EQ(forced.bias(stream(), 0, 5, DType::F32).shape(), (Shape{5, 4}));
  EXPECT_TRUE(forced.bias(stream(), 0, 3, DType::F32).same_memory(first));
}

TEST_F(ForcedRoutingTest, TokensOfAPieceAreThoseOfTheMicroBatch) {
  for (const char* mode : {"balanced", "uniform_random", "power_law:1.2", "all_to:[0,2]"}) {
    ForcedRouting forced(mode, 5, 2, 1);
    std::vector<double> whole =
        read_back_as_double(stream(), forced.bias(stream(), 0, 9, DType::F32));
    const std::vector<double> piece(whole.begin() + 4 * 5, whole.begin() + 7 * 5);
    EXPECT_EQ(read_back_as_double(stream(), forced.bias(stream(), 4, 3, DType::F32)), piece)
        << mode;
    const bool by_token = std::string(mode) != "all_to:[0,2]";
    whole.resize(3 * 5);
    EXPECT_EQ(piece != whole, by_token) << mode;
  }
}

TEST_F(ForcedRoutingTest, Refusals) {
  const auto refusal = [](const std::string& mode) -> std::string {
    try {
      ForcedRouting(mode, 4, 2, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal("fair"),
            "debug.force_routing = \"fair\" is not one of none, balanced, uniform_random, "
            "all_to:[..], skip:[..], power_law:a");
  for (const char* mode : {"all_to", "all_to:", "all_to:0,1", "all_to:[]", "all_to:[0,1",
                           "all_to:[0;1]", "all_to:[0,4]", "all_to:[-1,0]", "all_to:[0,1]x",
                           "all_to:[0,0]", "skip:[a]", "skip:[1,1]"}) {
    EXPECT_EQ(refusal(mode), concat("debug.force_routing = \"", mode,
                                    "\": after the colon a list of different experts in [0, 4) is "
                                    "needed, e.g. all_to:[0,1]"));
  }
  EXPECT_EQ(refusal("all_to:[2]"),
            "debug.force_routing = \"all_to:[2]\" lists 1 experts, but every token needs "
            "moe.top_k = 2");
  EXPECT_EQ(refusal("skip:[0,1,3]"),
            "debug.force_routing = \"skip:[0,1,3]\" leaves 1 experts, but every token needs "
            "moe.top_k = 2");
  for (const char* mode :
       {"power_law", "power_law:", "power_law:x", "power_law:-1", "power_law:1.2x"})
    EXPECT_EQ(refusal(mode), concat("debug.force_routing = \"", mode,
                                    "\": an exponent >= 0 is needed, e.g. power_law:1.2"));
  for (const char* kind : {"none", "balanced", "uniform_random"})
    EXPECT_THAT(refusal(concat(kind, ":3")), HasSubstr("takes nothing after a colon"));
}

}  // namespace
}  // namespace ferry::testing
