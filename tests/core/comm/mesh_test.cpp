#include "core/comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/device.h"
#include "tests/core/comm/group_checks.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(int world, const MeshSizes& sizes) {
  try {
    const Mesh mesh(world, sizes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

const MeshSizes kTp2Ep2Pp2{.tensor = 2, .pipeline = 2, .expert = 2};

TEST(Mesh, CutsEightRanks) {
  const Mesh mesh(8, kTp2Ep2Pp2);
  EXPECT_EQ(mesh.dp(), 2);
  EXPECT_EQ(mesh.edp(), 2);
  EXPECT_THAT(mesh.ranks_along("tp", 0), ElementsAre(0, 1));
  EXPECT_THAT(mesh.ranks_along("tp", 3), ElementsAre(2, 3));
  EXPECT_THAT(mesh.ranks_along("cp", 3), ElementsAre(3));
  EXPECT_THAT(mesh.ranks_along("dp", 0), ElementsAre(0, 2));
  EXPECT_THAT(mesh.ranks_along("dp", 3), ElementsAre(1, 3));
  EXPECT_THAT(mesh.ranks_along("pp", 0), ElementsAre(0, 4));
  EXPECT_THAT(mesh.ranks_along("pp", 7), ElementsAre(3, 7));
  EXPECT_THAT(mesh.ranks_along("etp", 5), ElementsAre(5));
  for (const int stage : {0, 4}) {
    EXPECT_THAT(mesh.ranks_along("ep", stage), ElementsAre(stage, stage + 1));
    EXPECT_THAT(mesh.ranks_along("ep", stage + 3), ElementsAre(stage + 2, stage + 3));
    EXPECT_THAT(mesh.ranks_along("edp", stage), ElementsAre(stage, stage + 2));
    EXPECT_THAT(mesh.ranks_along("edp", stage + 3), ElementsAre(stage + 1, stage + 3));
    EXPECT_THAT(mesh.ranks_along("exchange", stage + 3), ElementsAre(stage + 2, stage + 3));
    EXPECT_THAT(mesh.ranks_along("stage", stage + 1),
                ElementsAre(stage, stage + 1, stage + 2, stage + 3));
  }
  EXPECT_THAT(mesh.ranks_along("tied", 1), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(mesh.ranks_along("tied", 6), ElementsAre(0, 2, 4, 6));
}

TEST(Mesh, TiesTheFirstAndTheLastStage) {
  const Mesh mesh(8, {.pipeline = 4});
  EXPECT_THAT(mesh.ranks_along("tied", 0), ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(mesh.ranks_along("tied", 7), ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(mesh.ranks_along("tied", 3), ElementsAre(3)) << "a stage between them";
  EXPECT_THAT(Mesh(4, {.tensor = 2}).ranks_along("tied", 1), ElementsAre(1, 3)) << "one stage: dp";
}

TEST(Mesh, PrintsItself) {
  EXPECT_EQ(Mesh(8, kTp2Ep2Pp2).table(),
            "world 8 = attention TP2 CP1 DP2 PP2 | experts ETP1 EP2 EDP2 PP2\n"
            "rank tp cp dp pp | etp ep edp\n"
            "0 0 0 0 0 | 0 0 0\n"
            "1 1 0 0 0 | 0 1 0\n"
            "2 0 0 1 0 | 0 0 1\n"
            "3 1 0 1 0 | 0 1 1\n"
            "4 0 0 0 1 | 0 0 0\n"
            "5 1 0 0 1 | 0 1 0\n"
            "6 0 0 1 1 | 0 0 1\n"
            "7 1 0 1 1 | 0 1 1\n");
}

// Every rank is in exactly one group of each axis, at the place that its coordinate says.
TEST(Mesh, GroupsAgreeWithCoordinates) {
  for (const MeshSizes& sizes :
       {MeshSizes{.tensor = 2, .context = 3, .pipeline = 2, .expert = 4, .expert_tensor = 3},
        MeshSizes{.tensor = 4, .pipeline = 3, .expert = 8}, MeshSizes{.expert = 24}}) {
    const Mesh mesh(24, sizes);
    for (int rank = 0; rank < 24; ++rank) {
      const MeshCoordinates at = mesh.at(rank);
      const std::pair<const char*, int> coordinates[] = {
          {"tp", at.tp},   {"cp", at.cp}, {"dp", at.dp},  {"pp", at.pp},
          {"etp", at.etp}, {"ep", at.ep}, {"edp", at.edp}};
      for (const auto& [axis, coordinate] : coordinates) {
        const std::vector<int> ranks = mesh.ranks_along(axis, rank);
        EXPECT_EQ(ranks.at(static_cast<size_t>(coordinate)), rank) << axis;
        for (const int other : ranks) EXPECT_EQ(mesh.ranks_along(axis, other), ranks) << axis;
      }
    }
  }
}

TEST(Mesh, RefusesSizesThatDoNotDivide) {
  EXPECT_EQ(
      refusal(8, {.tensor = 3, .expert = 5, .expert_tensor = 2}),
      "error: 8 ranks cannot be arranged\n"
      "  attention grid: tensor * context * pipeline = 3 does not divide 8 ranks; nearest "
      "that do: 2 or 4\n"
      "  expert grid: expert_tensor * expert * pipeline = 10 does not divide 8 ranks; nearest "
      "that do: 8");
  EXPECT_THAT(refusal(4, {.tensor = 100000, .context = 100000, .pipeline = 100000}),
              HasSubstr("= 1000000000000000 does not divide 4 ranks; nearest that do: 4"));
}

TEST(Mesh, RefusesSizesBelowOne) {
  EXPECT_EQ(refusal(8, {.tensor = 0, .expert = -2}),
            "error: 8 ranks cannot be arranged\n"
            "  parallel.tensor = 0: at least 1 is needed\n"
            "  parallel.expert = -2: at least 1 is needed");
}

TEST(Mesh, RefusesUnknownAxesAndRanks) {
  const Mesh mesh(2, {});
  EXPECT_THROW(mesh.ranks_along("xp", 0), Error);
  EXPECT_THROW(mesh.ranks_along("tp", 2), Error);
  EXPECT_THROW(mesh.at(-1), Error);
}

TEST(MeshGroups, AreTheRanksOfEachAxis) {
  for (const MeshSizes& sizes : {kTp2Ep2Pp2, MeshSizes{.pipeline = 4}, MeshSizes{.expert = 4}}) {
    const Mesh mesh(8, sizes);
    run_ranks(8, [&](Group& world, Control&) {
      const auto device = make_cpu_device();
      const auto stream = device->make_stream("rank");
      const MeshGroups groups(mesh, world);
      for (const char* axis : {"tp", "pp", "exchange", "dp", "stage", "tied", "edp"}) {
        Group& group = groups.along(axis);
        const std::vector<int> ranks = mesh.ranks_along(axis, world.rank());
        EXPECT_EQ(group.size(), static_cast<int>(ranks.size())) << axis;
        const Tensor sum = make_tensor(*stream, {1}, DType::I32, [&](int64_t) {
          return static_cast<double>(1 << world.rank());
        });
        group.all_reduce(*stream, sum, ReduceOp::Sum);
        int expected = 0;
        for (const int rank : ranks) expected += 1 << rank;
        EXPECT_EQ(read_back<int32_t>(*stream, sum)[0], expected) << axis;
      }
      EXPECT_EQ(groups.coordinates().pp, mesh.at(world.rank()).pp);
      EXPECT_THROW(groups.along("world"), Error);
    });
  }
}

TEST(MeshGroups, ShareAGroupBetweenAxesThatReduceOverTheSameRanks) {
  run_ranks(4, [&](Group& world, Control&) {
    const MeshGroups groups(Mesh(4, {.expert = 2}), world);
    EXPECT_EQ(&groups.along("dp"), &groups.along("stage"));
    EXPECT_EQ(&groups.along("dp"), &groups.along("tied"));
    EXPECT_NE(&groups.along("dp"), &groups.along("edp"));
    EXPECT_NE(&groups.along("exchange"), &groups.along("edp"));
    EXPECT_EQ(groups.along("dp").name(), "dp[0,1,2,3]");
    const int first = world.rank() / 2 * 2;
    EXPECT_EQ(groups.along("exchange").name(), concat("exchange[", first, ',', first + 1, ']'));
    // The same ranks, but another kind of traffic, which must not wait behind reductions.
    const MeshGroups all(Mesh(4, {.expert = 4}), world);
    EXPECT_NE(&all.along("exchange"), &all.along("dp"));
  });
}

TEST(MeshGroups, NeedTheirWorld) {
  const auto world = make_solo_group();
  EXPECT_THROW(MeshGroups(Mesh(2, {}), *world), Error);
}

}  // namespace
}  // namespace ferry::testing
