#include "app/graph_plan.h"

#include <gtest/gtest.h>

#include "tests/app/small_run.h"

namespace ferry {
namespace {

TEST(GraphPlan, NamesThePartsThatAreGraphs) {
  CudaGraphTable table;
  EXPECT_FALSE(graphs_micro_batches(table));
  EXPECT_TRUE(graphed_parts(table).empty());
  table.impl = "full_iteration";
  EXPECT_TRUE(graphs_micro_batches(table));
  EXPECT_TRUE(graphed_parts(table).empty());
  table.impl = "local";
  EXPECT_FALSE(graphs_micro_batches(table));
  EXPECT_EQ(graphed_parts(table), std::set<Label>{Label::Layer}) << "no names: whole layers";
  table.modules = {"attn", "mlp", "moe_router", "moe_preprocess"};
  EXPECT_EQ(graphed_parts(table), (std::set<Label>{Label::Attn, Label::Mlp, Label::Router}));
  table.modules = {"moe"};
  EXPECT_EQ(graphed_parts(table), std::set<Label>{Label::Moe});
}

RunConfig with_parts(const testing::TempDir& dir, std::vector<std::string> more, int64_t ranks) {
  RunConfig config = testing::small_run(dir, more, ranks);
  config.cuda_graph.impl = "local";
  return config;
}

// A dense layer and a MoE layer; two sequences of 16 tokens, 32 wide, in FP32 or its double.
TEST(GraphPlan, CountsTheTensorsThatGraphsKeep) {
  const testing::TempDir dir;
  RunConfig config = with_parts(dir, {}, 1);
  const int64_t tensor =
      2 * 16 * 32 * static_cast<int64_t>(size_of(dtype_of(config.model.precision)));
  EXPECT_EQ(graph_tensor_bytes(config, 1, 0), 2 * 4 * tensor) << "whole layers";
  config.cuda_graph.modules = {"attn", "moe_router"};
  EXPECT_EQ(graph_tensor_bytes(config, 1, 0), (2 * 4 + 2) * tensor);
  config.cuda_graph.modules = {"mlp"};
  EXPECT_EQ(graph_tensor_bytes(config, 1, 0), 4 * tensor);
  config.cuda_graph.modules = {"moe"};
  EXPECT_EQ(graph_tensor_bytes(config, 1, 0), 4 * tensor);
  config.cuda_graph.impl = "none";
  EXPECT_EQ(graph_tensor_bytes(config, 1, 0), 0);
}

TEST(GraphPlan, CountsTheMicroBatchesUnderWay) {
  const testing::TempDir dir;
  RunConfig config = with_parts(dir, {"parallel.pipeline=2"}, 2);
  config.cuda_graph.modules = {"attn"};
  const int64_t tensor =
      2 * 16 * 32 * static_cast<int64_t>(size_of(dtype_of(config.model.precision)));
  EXPECT_EQ(graph_tensor_bytes(config, 2, 0), 2 * 4 * tensor) << "1F1B has two under way here";
  EXPECT_EQ(graph_tensor_bytes(config, 2, 1), 4 * tensor);
}

}  // namespace
}  // namespace ferry
