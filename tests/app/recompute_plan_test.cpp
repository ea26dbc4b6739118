#include "app/recompute_plan.h"

#include <gtest/gtest.h>

namespace ferry::testing {
namespace {

using Labels = std::set<Label>;
using Layers = GptRecompute::Layers;

TEST(RecomputePlan, IsNothingUnlessAskedFor) {
  const RecomputeTable table;  // with modules = ["core_attn"]
  EXPECT_EQ(gpt_recompute(table).modules, Labels());
  EXPECT_EQ(gpt_recompute(table).layers, Layers::None);
  EXPECT_EQ(discarded_labels(table), Labels());
}

TEST(RecomputePlan, SelectiveIsCheckpointedOrDiscarded) {
  RecomputeTable table;
  table.granularity = "selective";
  EXPECT_EQ(gpt_recompute(table).modules, (Labels{Label::CoreAttn}));
  EXPECT_EQ(discarded_labels(table), Labels());

  table.modules = {"core_attn", "moe_act", "layernorm",     "mla_up_proj",
                   "mlp",       "moe",     "shared_experts"};
  const GptRecompute plan = gpt_recompute(table);
  EXPECT_EQ(plan.modules, (Labels{Label::CoreAttn, Label::Mlp, Label::Moe, Label::SharedExperts}));
  EXPECT_EQ(plan.layers, Layers::None);
  EXPECT_EQ(discarded_labels(table), (Labels{Label::MoeAct, Label::Layernorm, Label::MlaUpProj}));
}

TEST(RecomputePlan, FullIsOfWholeLayers) {
  RecomputeTable table;
  table.granularity = "full";
  table.num_layers = 3;
  for (const auto& [method, layers] :
       {std::pair("uniform", Layers::Uniform), {"block", Layers::Block}}) {
    for (const bool distribute : {false, true}) {
      table.method = method;
      table.distribute_saved_activations = distribute;
      const GptRecompute plan = gpt_recompute(table);
      EXPECT_EQ(plan.layers, layers);
      EXPECT_EQ(plan.num_layers, 3);
      EXPECT_EQ(plan.distribute, distribute);
      EXPECT_EQ(plan.modules, Labels()) << "the modules are of selective recompute";
      EXPECT_EQ(discarded_labels(table), Labels());
    }
  }
}

// Every name that the configuration allows has a label.
TEST(RecomputePlan, KnowsAllAllowedModules) {
  bool visited = false;
  RecomputeTable::visit_fields([&](const Field& field, auto member) {
    if (std::string_view(field.key) != "modules") return;
    if constexpr (std::is_same_v<decltype(member), std::vector<std::string> RecomputeTable::*>) {
      visited = true;
      RecomputeTable table;
      table.granularity = "selective";
      table.modules.clear();
      for (const auto& name : field.allowed) table.modules.emplace_back(name);
      EXPECT_EQ(gpt_recompute(table).modules.size() + discarded_labels(table).size(),
                field.allowed.size());
    }
  });
  EXPECT_TRUE(visited);
}

TEST(RecomputePlan, RefusesNamesThatValidationLetThrough) {
  RecomputeTable table;
  table.granularity = "selective";
  table.modules = {"attention"};
  EXPECT_THROW(gpt_recompute(table), Error);
  table.granularity = "full";
  table.method = "none";
  EXPECT_THROW(gpt_recompute(table), Error);
}

}  // namespace
}  // namespace ferry::testing
