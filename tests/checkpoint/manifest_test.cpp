#include "checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/sample_manifest.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::sample_manifest;

TEST(Manifest, TheSampleIsConsistent) { EXPECT_EQ(manifest_defect(sample_manifest()), ""); }

TEST(Manifest, DefectsAreNamed) {
  const auto defect = [](auto&& change) {
    Manifest manifest = sample_manifest();
    change(manifest);
    return manifest_defect(manifest);
  };
  EXPECT_THAT(defect([](Manifest& m) { m.step = -1; }), HasSubstr("step is negative"));
  EXPECT_THAT(defect([](Manifest& m) { m.run = "mine"; }), HasSubstr("'mine' is no name of a run"));
  EXPECT_THAT(defect([](Manifest& m) { m.parent->run.clear(); }),
              HasSubstr("'' is no name of the parent's run"));
  EXPECT_THAT(defect([](Manifest& m) { m.chunk_bytes = 12; }), HasSubstr("chunks of 12 bytes"));
  EXPECT_THAT(defect([](Manifest& m) { m.files[0].bytes = -1; }), HasSubstr("negative size"));
  EXPECT_THAT(defect([](Manifest& m) { m.state["a//b"] = int64_t{1}; }),
              HasSubstr("scalar 'a//b'"));
  EXPECT_THAT(defect([](Manifest& m) { m.tensors[0].slices.pop_back(); }),
              HasSubstr("tensor 'a': slices cover 4 of 8 elements"));
  EXPECT_THAT(defect([](Manifest& m) { m.tensors[0].slices[1].address = 100; }),
              HasSubstr("slices overlap in shard-00000.h5"));
  EXPECT_THAT(defect([](Manifest& m) { m.tensors[0].slices[1].address = 190; }),
              HasSubstr("does not lie inside shard-00000.h5"));
}

TEST(Manifest, ConfigDigestsSeeTheValuesAlone) {
  const std::string digest = "c2ca4ba5ede0ea71842c5f6ba0fe3aedd483117230f86018c87890840efeea6b";
  EXPECT_EQ(config_digest("[run]\nsteps = 5\nname = \"a # \\\" b\"\n"), digest);
  EXPECT_EQ(config_digest("# a comment\n[run]   # where from\n\nsteps = 5 \t# \"quoted\"\r\n"
                          "name = \"a # \\\" b\"#\n# x is not set"),
            digest);
  EXPECT_NE(config_digest("[run]\nsteps = 6\nname = \"a # \\\" b\"\n"), digest);
  EXPECT_NE(config_digest("[run]\nsteps = 5\nname = \"a # \\\" c\"\n"), digest);
  EXPECT_EQ(config_digest(""), config_digest("#"));
}

TEST(Manifest, RegionsAreSortedByAddress) {
  const std::vector<Region> regions = regions_of(sample_manifest(), 0);
  ASSERT_EQ(regions.size(), 3u);
  EXPECT_EQ(regions[0].address, 100);
  EXPECT_EQ(regions[1].address, 116);
  EXPECT_EQ(regions[2].address, 140);
  EXPECT_EQ(regions[2].bytes, 24);
}

TEST(Manifest, TheRootSeesTheStateAndNothingElse) {
  const auto root = [](auto&& change) {
    Manifest manifest = sample_manifest();
    change(manifest);
    return root_digest(manifest);
  };
  const std::string unchanged = root_digest(sample_manifest());
  EXPECT_EQ(root([](Manifest& m) {
              m.run = std::string(32, 'd'), m.created = "later", m.attempt = 9, m.layout = "x",
              m.config = "y", m.writer = "z";
              m.parent.reset(), m.chunk_bytes = 64, m.files.clear(), m.tensors[0].slices.clear();
            }),
            unchanged);
  EXPECT_NE(root([](Manifest& m) { m.step = 61; }), unchanged);
  EXPECT_NE(root([](Manifest& m) { m.state["step"] = 60.0; }), unchanged);
  EXPECT_NE(root([](Manifest& m) { m.state["step"] = std::string("60"); }), unchanged);
  EXPECT_NE(root([](Manifest& m) { m.state["zero"] = -0.0; }),
            root([](Manifest& m) { m.state["zero"] = 0.0; }));
  EXPECT_NE(root([](Manifest& m) { m.tensors[0].digest.low ^= 1; }), unchanged);
  EXPECT_NE(root([](Manifest& m) { m.tensors[0].shape = {2, 4}; }), unchanged);
  EXPECT_NE(root([](Manifest& m) { m.tensors[0].dtype = DType::I32; }), unchanged);
  EXPECT_NE(root([](Manifest& m) { m.tensors[0].name = "aa"; }), unchanged);
}

}  // namespace
}  // namespace ferry
