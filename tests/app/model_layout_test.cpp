#include "app/model_layout.h"

#include <gtest/gtest.h>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using testing::quickstart;

// "Et*2" or "t*2L", as a layout has it.
std::vector<std::string> parts_text(const RunConfig& config, int pp) {
  std::vector<std::string> texts;
  for (const ModelPart& part : model_parts(config, pp))
    texts.push_back(concat(part.embedding ? "E" : "", part.first_layer, "+", part.num_layers,
                           part.head ? "L" : ""));
  return texts;
}

using Texts = std::vector<std::string>;

TEST(ModelLayout, PartsOfEachPipelineRank) {
  const RunConfig one = quickstart({});
  EXPECT_EQ(parts_text(one, 0), (Texts{"E0+4L"}));
  const RunConfig two = quickstart({"parallel.pipeline=2"});
  EXPECT_EQ(parts_text(two, 0), (Texts{"E0+2"}));
  EXPECT_EQ(parts_text(two, 1), (Texts{"2+2L"}));
  const RunConfig chunks = quickstart({"parallel.pipeline=2", "parallel.virtual_stages=2"});
  EXPECT_EQ(parts_text(chunks, 0), (Texts{"E0+1", "2+1"}));
  EXPECT_EQ(parts_text(chunks, 1), (Texts{"1+1", "3+1L"}));
  const RunConfig uneven = quickstart({"parallel.pipeline=2", "parallel.layout='E|t*3||tL'"});
  EXPECT_EQ(parts_text(uneven, 0), (Texts{"E0+0", "3+0"}));
  EXPECT_EQ(parts_text(uneven, 1), (Texts{"0+3", "3+1L"}));
  EXPECT_EQ(layout_text(model_stages(uneven)), "E|t*3||tL");
}

TEST(ModelLayout, GridInOneLine) {
  const RunConfig config = quickstart(
      {"parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2", "parallel.expert=2"});
  const Mesh mesh(8, mesh_sizes(config.parallel));
  EXPECT_EQ(grid_text(config, mesh), "world 8 = tp 2 sp cp 1 dp 2 pp 2 vpp 1 | etp 1 ep 2 edp 2");
  const RunConfig one = quickstart({});
  EXPECT_EQ(grid_text(one, Mesh(1, mesh_sizes(one.parallel))),
            "world 1 = tp 1 cp 1 dp 1 pp 1 vpp 1 | etp 1 ep 1 edp 1");
  const RunConfig layout = quickstart({"parallel.pipeline=2", "parallel.layout='E|t*3||tL'"});
  EXPECT_EQ(grid_text(layout, Mesh(2, mesh_sizes(layout.parallel))),
            "world 2 = tp 1 cp 1 dp 1 pp 2 vpp 2 | etp 1 ep 1 edp 1")
      << "a layout says how many virtual stages there are";
}

TEST(ModelLayout, AxesAreTheCoordinates) {
  const RunConfig config = quickstart({"parallel.tensor=2", "parallel.sequence=true",
                                       "parallel.expert=2", "parallel.expert_tensor=2"});
  const Mesh mesh(4, mesh_sizes(config.parallel));
  const ModelAxes axes = model_axes(config.parallel, mesh.at(3));
  EXPECT_EQ(axes.tensor.group, nullptr);
  EXPECT_EQ(axes.tensor.rank, 1);
  EXPECT_EQ(axes.tensor.size, 2);
  EXPECT_TRUE(axes.tensor.sequence);
  EXPECT_EQ(axes.expert.exchange, nullptr);
  EXPECT_EQ(axes.expert.ep_rank, 1);
  EXPECT_EQ(axes.expert.ep_size, 2);
  EXPECT_EQ(axes.expert.etp_rank, 1);
  EXPECT_EQ(axes.expert.etp_size, 2);
}

TEST(ModelLayout, GroupsAreThoseOfTheAxes) {
  const RunConfig config = quickstart({});
  const auto solo = make_solo_group();
  const MeshGroups groups(Mesh(1, mesh_sizes(config.parallel)), *solo);
  const ModelAxes axes = model_axes(config.parallel, groups);
  EXPECT_EQ(axes.tensor.group, &groups.along("tp"));
  EXPECT_EQ(axes.expert.exchange, &groups.along("exchange"));
}

TEST(ModelLayout, TheScheduleThatTheConfigurationMeans) {
  const ScheduleShape one = training_schedule(quickstart({"parallel.pipeline=2"}), 4);
  EXPECT_EQ(one.kind, ScheduleKind::OneForwardOneBackward);
  EXPECT_EQ(one.num_ranks, 2);
  EXPECT_EQ(one.num_chunks, 1);
  EXPECT_EQ(one.num_micro, 4);  // 16 samples in pairs over 2 data-parallel ranks
  const RunConfig chunks = quickstart(
      {"parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.microbatch_group=4"});
  const ScheduleShape interleaved = training_schedule(chunks, 2);
  EXPECT_EQ(interleaved.kind, ScheduleKind::Interleaved);
  EXPECT_EQ(interleaved.num_chunks, 2);
  EXPECT_EQ(interleaved.num_micro, 8);
  EXPECT_EQ(interleaved.group, 4);
  EXPECT_EQ(schedule_shape(chunks, ScheduleKind::ForwardOnly, 3).num_micro, 3);
}

}  // namespace
}  // namespace ferry
