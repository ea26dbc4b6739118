#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "app/config_file.h"
#include "app/plan_command.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

// The table of the law b* = F_layer * B / R, at the rates it was published with.
TEST(PlanJson, CopiesThatHideBehindForward) {
  struct Published {
    const char* config;
    double hidden, core_attn, expert_fc1;
  };
  for (const auto& [name, hidden, core_attn, expert_fc1] :
       {Published{"olmoe_1b_7b", 14.7e3, 0.83, 2.22},
        Published{"qwen3_30b_a3b", 14.3e3, 0.71, 2.28},
        Published{"mixtral_8x7b", 80.1e3, 0.15, 0.20}}) {
    SCOPED_TRACE(name);
    const RunConfig config =
        load_valid_config(std::string(FERRY_SOURCE_DIR) + "/configs/" + name + ".toml", {}, 1);
    const auto plan = nlohmann::json::parse(plan_json(config, 1, {50e9, 514e12}));
    EXPECT_EQ(plan["rates"]["link_gb_s"], 50);
    EXPECT_NEAR(plan["hidden_bytes_per_token_of_moe_layer"].get<double>() / hidden, 1, 0.003);
    const auto& ratios = plan["copy_to_forward_ratio_of_moe_layer"];
    EXPECT_NEAR(ratios["core_attn"].get<double>(), core_attn, 0.015);
    EXPECT_NEAR(ratios["expert_fc1"].get<double>(), expert_fc1, 0.015);
  }
}

TEST(PlanJson, SumsAreThoseOfTheirParts) {
  testing::TempDir dir;
  RunConfig config = testing::parallel_run(dir, {"parallel.pipeline=2"}, 2);
  config.activation_offload.enabled = true;
  config.activation_offload.modules = {"core_attn", "expert_fc1"};
  config.activation_offload.min_tensor_elements = 1;
  const auto plan = nlohmann::json::parse(plan_json(config, 2));
  ASSERT_EQ(plan["memory_bytes_per_rank"].size(), 2u);
  for (size_t pp = 0; pp < 2; ++pp) {
    int64_t activations = 0, d2h = 0;
    for (const auto& [module, bytes] : plan["activation_bytes_per_rank"][pp].items())
      activations += bytes.get<int64_t>();
    EXPECT_EQ(plan["memory_bytes_per_rank"][pp]["activations"], activations);
    const nlohmann::json& offload = plan["predicted_offload_per_rank"][pp];
    for (const auto& [module, moved] : offload["modules"].items())
      d2h += moved["d2h_bytes"].get<int64_t>();
    EXPECT_EQ(offload["d2h_bytes"], d2h);
    EXPECT_GT(d2h, 0);
  }
  // Both kinds of layers are in the model.
  for (const char* kind : {"dense_layer", "moe_layer"}) {
    EXPECT_TRUE(plan.contains(std::string("saved_bytes_per_token_of_") + kind));
    EXPECT_GT(plan[std::string("hidden_bytes_per_token_of_") + kind].get<double>(), 0);
  }
}

}  // namespace
}  // namespace ferry
