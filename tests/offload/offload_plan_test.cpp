#include "offload/offload_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;

// `layers` layers with a group of each module, all of the same size.
PassGroups make_pass(PassId id, int layers, const std::vector<std::string>& modules,
                     int64_t bytes = 1000) {
  PassGroups pass{id, {}};
  for (int layer = 0; layer < layers; ++layer)
    for (const std::string& module : modules) pass.groups.push_back({module, bytes, true});
  return pass;
}

// "TTF": which groups of a pass move.
std::string flags(const PassGroups& pass) {
  std::string text;
  for (const OffloadGroup& group : pass.groups) text += group.offload ? 'T' : 'F';
  return text;
}

std::string flags_of_one_pass(const OffloadRules& rules, int layers,
                              const std::vector<std::string>& modules) {
  std::vector<PassGroups> passes{make_pass({0, 0}, layers, modules)};
  plan_offload(passes, rules);
  return flags(passes[0]);
}

PassAction forward(int chunk, int micro) { return {true, {chunk, micro}}; }
PassAction backward(int chunk, int micro) { return {false, {chunk, micro}}; }

TEST(OffloadPlan, KeepsTheLastGroupOfEachModuleOfThePassThatComesBackFirst) {
  std::vector<PassGroups> passes{make_pass({0, 0}, 3, {"a", "f"}),
                                 make_pass({0, 1}, 3, {"a", "f"})};
  EXPECT_EQ(plan_offload(passes, {}), 2);
  EXPECT_EQ(flags(passes[0]), "TTTTFF");
  EXPECT_EQ(flags(passes[1]), "TTTTTT");
}

// Several chunks: with two chunks of two micro-batches c1m0 comes back first.
TEST(OffloadPlan, FollowsTheOrderOfBackwardOfAnInterleavedSchedule) {
  const std::vector<PassAction> actions{forward(0, 0),  forward(0, 1),  forward(1, 0),
                                        forward(1, 1),  backward(1, 0), backward(1, 1),
                                        backward(0, 0), backward(0, 1)};
  const std::vector<PassId> order = backward_order(actions);
  EXPECT_THAT(order, ElementsAre(PassId{1, 0}, PassId{1, 1}, PassId{0, 0}, PassId{0, 1}));
  std::vector<PassGroups> passes;
  for (const PassId& pass : order) passes.push_back(make_pass(pass, 2, {"a"}));
  EXPECT_EQ(plan_offload(passes, {}), 1);
  EXPECT_EQ(flags(passes[0]), "TF");
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(flags(passes[i]), "TT") << i;
}

// The margin is of distinct modules in one pass: of three in all, two are protected, those that
// the walk from the last pass back sees first.
TEST(OffloadPlan, ProtectsNoMoreModulesThanOnePassHas) {
  std::vector<PassGroups> passes{make_pass({0, 0}, 1, {"a", "b"}), make_pass({0, 1}, 1, {"c"})};
  EXPECT_EQ(plan_offload(passes, {}), 2);
  EXPECT_EQ(flags(passes[1]), "F");   // c is seen first
  EXPECT_EQ(flags(passes[0]), "FT");  // then a; b is beyond the margin
}

TEST(OffloadPlan, FractionCountsGroupsFromTheEnd) {
  const auto flags_at = [](double fraction) {
    return flags_of_one_pass({fraction, 0, 0}, 4, {"a", "b"});
  };
  EXPECT_EQ(flags_at(0), "FFFFFFFF");
  EXPECT_EQ(flags_at(0.25), "TTFFFFFF");
  EXPECT_EQ(flags_at(0.5), "TTTFFFFF");
  EXPECT_EQ(flags_at(0.75), "TTTTTFFF");
  EXPECT_EQ(flags_at(1), "TTTTTTFF");
}

// Truncated in double precision: 1 - 0.9 is a little below 0.1, and 1 - 0.8 a little below 0.2.
TEST(OffloadPlan, FractionTruncatesInDoublePrecision) {
  const auto num_kept = [](int layers, double fraction) {
    const std::string text = flags_of_one_pass({fraction, 0, 0}, layers, {"a"});
    return std::count(text.begin(), text.end(), 'F') - 1;  // one is kept by the margin
  };
  EXPECT_EQ(num_kept(11, 0.9), 0);
  EXPECT_EQ(num_kept(6, 0.8), 0);
  EXPECT_EQ(num_kept(11, 0.8), 1);
}

TEST(OffloadPlan, GroupsWithoutBytesDoNotCountInTheFraction) {
  std::vector<PassGroups> passes{make_pass({0, 0}, 5, {"a"})};
  passes[0].groups[1].bytes = 0;
  passes[0].groups[2].bytes = 0;
  plan_offload(passes, {0.5, 0, 0});
  EXPECT_EQ(flags(passes[0]), "TTTFF");  // of 0 and 3, the last
}

TEST(OffloadPlan, DeltaKeepsTheFirstGroupsOfLaterPipelineRanks) {
  const auto flags_of_rank = [](int rank) {
    return flags_of_one_pass({1.0, 2500, rank}, 6, {"a"});
  };
  // Of 2000 bytes each.
  std::string expected[] = {"TTTTTF", "FFTTTF", "FFFTTF"};
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<PassGroups> passes{make_pass({0, 0}, 6, {"a"}, 2000)};
    plan_offload(passes, {1.0, 2500, rank});
    EXPECT_EQ(flags(passes[0]), expected[rank]);
  }
  EXPECT_EQ(flags_of_rank(2), "FFFFFF");  // 5000 bytes of 1000 each; the sixth by the margin
}

TEST(OffloadPlan, DeltaIsOneBudgetOverAllPasses) {
  std::vector<PassGroups> passes{make_pass({0, 0}, 2, {"a"}), make_pass({0, 1}, 2, {"a"})};
  passes[0].groups[0].bytes = 0;  // costs nothing, and stays all the same
  plan_offload(passes, {1.0, 500, 1});
  EXPECT_EQ(flags(passes[0]), "FF");
  EXPECT_EQ(flags(passes[1]), "FT");
}

TEST(OffloadPlan, CanBeMadeAgain) {
  std::vector<PassGroups> passes{make_pass({0, 0}, 3, {"a"})};
  plan_offload(passes, {0, 0, 0});
  EXPECT_EQ(flags(passes[0]), "FFF");
  plan_offload(passes, {});
  EXPECT_EQ(flags(passes[0]), "TTF");
}

TEST(OffloadSummary, CountsThePassesUpToTheOneThatComesBackFirst) {
  const std::vector<PassAction> one_by_one{forward(0, 0), backward(0, 0), forward(0, 1),
                                           backward(0, 1)};
  std::vector<PassGroups> passes{make_pass({0, 0}, 3, {"a", "f"}),
                                 make_pass({0, 1}, 3, {"a", "f"})};
  plan_offload(passes, {});
  EXPECT_EQ(resident_bytes(one_by_one, passes),
            (std::map<std::string, int64_t>{{"a", 2000}, {"f", 2000}}));

  const std::vector<PassAction> interleaved{forward(0, 0), forward(1, 0), backward(1, 0),
                                            backward(0, 0)};
  std::vector<PassGroups> two{make_pass({1, 0}, 2, {"a"}), make_pass({0, 0}, 2, {"a"})};
  plan_offload(two, {});
  EXPECT_EQ(resident_bytes(interleaved, two), (std::map<std::string, int64_t>{{"a", 3000}}));
}

TEST(OffloadSummary, IsATableInMegabytes) {
  const int64_t mb = 1 << 20;
  EXPECT_EQ(offload_summary({{{"expert_fc1", 3 * mb / 2}, {"core_attn", mb}}, {{"core_attn", 0}}}),
            "Activation Offload Summary (MB)\n"
            "Rank       core_attn  expert_fc1       Total\n"
            "Rank 0          1.00        1.50        2.50\n"
            "Rank 1          0.00        0.00        0.00\n"
            "Total           1.00        1.50        2.50\n");
  // A long name makes its columns wider.
  EXPECT_EQ(offload_summary({{{"fused_group_mlp", mb}}}),
            "Activation Offload Summary (MB)\n"
            "Rank      fused_group_mlp            Total\n"
            "Rank 0               1.00             1.00\n"
            "Total                1.00             1.00\n");
}

}  // namespace
}  // namespace ferry::testing
