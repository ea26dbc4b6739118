#include "app/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/config_command.h"
#include "app/config_file.h"
#include "core/check.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

std::string source(const std::string& path) { return std::string(FERRY_SOURCE_DIR) + "/" + path; }

// What `ferry ARGUMENTS...` prints.
std::string output_of(std::vector<std::string> arguments) {
  CLI::App root;
  add_plan_command(root);
  add_config_command(root);
  std::reverse(arguments.begin(), arguments.end());  // as CLI::App wants them
  ::testing::internal::CaptureStdout();
  try {
    root.parse(arguments);
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  return ::testing::internal::GetCapturedStdout();
}

// Each line of commands.txt: the name of a file, and the arguments of the plan in it.
TEST(PlanCommand, TextsAreTheRecordedOnes) {
  std::ifstream commands(source("tests/golden/plan/commands.txt"));
  int count = 0;
  for (std::string line; std::getline(commands, line); ++count) {
    std::istringstream words(line);
    std::string name, config;
    words >> name >> config;
    std::vector<std::string> arguments = {"plan", source(config)};
    for (std::string word; words >> word;) arguments.push_back(word);
    std::ostringstream golden;
    golden << std::ifstream(source("tests/golden/plan/" + name + ".txt")).rdbuf();
    EXPECT_EQ(output_of(arguments), golden.str())
        << "if the change is meant: scripts/make_golden.py plan/" << name;
  }
  EXPECT_GE(count, 7);
}

TEST(PlanCommand, JsonHasThePublishedNumbers) {
  const auto plan_of = [](const char* name) {
    return nlohmann::json::parse(
        output_of({"plan", source(std::string("configs/") + name), "--json"}));
  };
  const nlohmann::json olmoe = plan_of("olmoe_1b_7b.toml");
  EXPECT_EQ(olmoe["parameters"]["total"], 6'919'161'856);
  EXPECT_EQ(plan_of("qwen3_30b_a3b.toml")["parameters"]["total"], 30'532'122'624);
  EXPECT_EQ(plan_of("mixtral_8x7b.toml")["parameters"]["total"], 46'702'792'704);
  EXPECT_NEAR(olmoe["flops_per_token"]["total"].get<double>(), 7.88e9, 5e6);
  EXPECT_EQ(olmoe["experts_per_rank"], 64);
  EXPECT_EQ(olmoe["layers_per_stage"], std::vector<int64_t>{16});
  ASSERT_EQ(olmoe["memory_bytes_per_rank"].size(), 1u);
  const nlohmann::json& memory = olmoe["memory_bytes_per_rank"][0];
  int64_t sum = 0;
  for (const auto& [name, bytes] : memory.items()) {
    if (name != "total") sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(memory["total"], sum);
}

TEST(PlanCommand, JsonOfAPipeline) {
  const auto plan = nlohmann::json::parse(output_of(
      {"plan", source("configs/quickstart.toml"), "--ranks", "8", "--json", "parallel.pipeline=2",
       "parallel.tensor=2", "parallel.expert=2", "parallel.layout=E|ttt|t|L"}));
  EXPECT_EQ(plan["grid"]["data"], 2);
  EXPECT_EQ(plan["grid"]["expert_data"], 2);
  EXPECT_EQ(plan["layout"], "E|t*3|t|L");
  EXPECT_EQ(plan["layers_per_stage"], (std::vector<int64_t>{0, 3, 1, 0}));
  EXPECT_EQ(plan["microbatches"], 4);
  ASSERT_EQ(plan["schedule"].size(), 2u);
  EXPECT_EQ(plan["schedule"][0]["rank"], 0);
  EXPECT_EQ(plan["schedule"][0]["peak_in_flight"], 5);
  const std::string actions = plan["schedule"][0]["actions"];
  EXPECT_EQ(std::count(actions.begin(), actions.end(), 'F'), 2 * 4);
  EXPECT_EQ(std::count(actions.begin(), actions.end(), 'B'), 2 * 4);
  EXPECT_THAT(actions, ::testing::StartsWith("F0.0 F1.0 F0.1 F1.1 "));
  EXPECT_DOUBLE_EQ(plan["bubble"], 1.0 / (4 * 2));
  ASSERT_EQ(plan["memory_bytes_per_rank"].size(), 2u);
  EXPECT_NE(plan["memory_bytes_per_rank"][0], plan["memory_bytes_per_rank"][1]);
}

TEST(PlanCommand, OfManyStagesTheOneThatNeedsMostIsShown) {
  const std::string text =
      output_of({"plan", source("configs/mixtral_8x7b.toml"), "parallel.pipeline=16"});
  EXPECT_THAT(text, HasSubstr("\n  pipeline rank                0\n  weights"));
  EXPECT_THAT(text, HasSubstr("\nrank 15  F0 B0 F1 B1"));
}

TEST(PlanCommand, TheSizeOfTheQuickStart) {
  const RunConfig config = load_valid_config(source("configs/quickstart.toml"), {}, 1);
  const auto plan = nlohmann::json::parse(plan_json(config, 1));
  EXPECT_GE(plan["parameters"]["total"], 2'000'000);
  EXPECT_LE(plan["parameters"]["total"], 5'000'000);
}

TEST(PlanCommand, RanksShareTheBatch) {
  const auto plan = nlohmann::json::parse(output_of(
      {"plan", source("configs/quickstart.toml"), "--ranks", "4", "--json", "batch.global=32"}));
  EXPECT_EQ(plan["ranks"], 4);
  EXPECT_EQ(plan["grid"]["data"], 4);
  EXPECT_EQ(plan["microbatches"], 4);
  EXPECT_EQ(plan["tokens_per_step"], 32 * 128);
}

TEST(PlanCommand, ADenseModelHasNoExperts) {
  const std::string text =
      output_of({"plan", source("configs/quickstart.toml"), "moe.experts=0", "moe.ffn=0"});
  EXPECT_THAT(text, HasSubstr("dense_mlp"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("expert_fc1")));
}

// Where experts are on several ranks, nothing but the text changes.
TEST(PlanCommand, SaysWhetherTokensAreReadInPlace) {
  const auto text = [](const std::string& gather, const std::string& layout) {
    return output_of({"plan", source("configs/quickstart.toml"), "--ranks", "2", gather, layout});
  };
  const std::string on = "moe.gather=true", off = "moe.gather=false";
  EXPECT_THAT(text(on, "parallel.tensor=2"), HasSubstr(" per rank, tokens read in place\n"));
  EXPECT_THAT(text(off, "parallel.tensor=2"), ::testing::Not(HasSubstr(", tokens ")));
  const std::string copied = ", tokens copied (moe.gather needs all experts on one rank)";
  for (const std::string layout : {"parallel.expert=2", "parallel.expert_tensor=2"}) {
    std::string gathering = text(on, layout);
    const size_t at = gathering.find(copied);
    ASSERT_NE(at, std::string::npos) << gathering;
    EXPECT_EQ(gathering.erase(at, copied.size()), text(off, layout));
  }
}

// moe_permute makes nothing again where no copies are, and is legal; what it excludes, it excludes.
TEST(PlanCommand, TokensInPlaceWithMoePermute) {
  const std::vector<std::string> plain{"plan", source("configs/quickstart.toml"),
                                       "moe.gather=true"};
  std::vector<std::string> permute = plain;
  permute.insert(permute.end(),
                 {"recompute.granularity=selective", "recompute.modules=[moe_permute]"});
  EXPECT_EQ(output_of(permute), output_of(plain));
  permute.insert(permute.end(),
                 {"activation_offload.enabled=true", "activation_offload.modules=[expert_fc1]"});
  try {
    output_of(permute);
    FAIL() << "offload of rows that would be made again on other layouts";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("remove expert_fc1, or moe_permute"));
  }
}

TEST(PlanCommand, PredictsWhatOffloadMoves) {
  const std::vector<std::string> arguments{"plan", source("configs/bench/olmoe_8l.toml"),
                                           "activation_offload.enabled=true",
                                           "activation_offload.modules=[core_attn]"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), arguments.begin(), arguments.end());
    return output_of(more);
  };
  const std::string text = with({});
  EXPECT_THAT(text, HasSubstr("\noffload     2.82 GB to the host and back per step"));
  EXPECT_THAT(text, HasSubstr("predicted at 55 GB/s and 500 TFLOP/s (--link-gb-s, --tflops)"));
  EXPECT_THAT(text, HasSubstr("\n  core_attn                2.819         2.819          0.00\n"));
  EXPECT_THAT(text, HasSubstr("\n  groups          8 of 8 in a pass move\n"));
  EXPECT_THAT(with({"activation_offload.auto_budget=0.02"}),
              HasSubstr("in a pass move: the choice of auto_budget = 0.02\n"));
  const auto plan = nlohmann::json::parse(with({"--json", "--link-gb-s", "1"}));
  const nlohmann::json& offload = plan["predicted_offload_per_rank"][0];
  EXPECT_EQ(offload["d2h_bytes"], offload["modules"]["core_attn"]["d2h_bytes"]);
  EXPECT_GT(offload["exposed_s"]["h2d"].get<double>(), 0.1);
  EXPECT_GT(offload["cost"].get<double>(), 1) << "at 1 GB/s";
  EXPECT_GT(plan["memory_bytes_per_rank"][0]["copies"], 0);
  EXPECT_GT(plan["pinned_host_bytes_per_rank"][0], 0);
  const auto without =
      nlohmann::json::parse(output_of({"plan", source("configs/bench/olmoe_8l.toml"), "--json"}));
  EXPECT_TRUE(without["predicted_offload_per_rank"][0].is_null());
  EXPECT_EQ(without["memory_bytes_per_rank"][0]["activations"],
            offload["activation_bytes_without"]);
  EXPECT_GT(without["activation_bytes_per_rank"][0]["core_attn"],
            plan["activation_bytes_per_rank"][0]["core_attn"]);
  EXPECT_THROW(with({"--link-gb-s", "0"}), CLI::ValidationError);
  EXPECT_THROW(with({"--tflops", "-1"}), CLI::ValidationError);
}

TEST(PlanCommand, SaysWhereTheOptimizerIs) {
  const std::vector<std::string> arguments{"plan", source("configs/olmoe_1b_7b.toml"), "--json",
                                           "optimizer.offload.enabled=true"};
  const auto plan_with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), arguments.begin(), arguments.end());
    return nlohmann::json::parse(output_of(more));
  };
  const int64_t parameters = 6'919'161'856, router = 2'097'152;
  const nlohmann::json all = plan_with({"optimizer.offload.overlap_d2h_h2d=true"});
  const nlohmann::json& bytes = all["optimizer_bytes_per_rank"][0];
  EXPECT_EQ(bytes["host_masters"], 4 * parameters);
  EXPECT_EQ(bytes["host_moments"], 8 * parameters);
  EXPECT_EQ(bytes["gradient_staging"], 4 * parameters);
  EXPECT_EQ(bytes["d2h_bytes"], 4 * parameters);
  EXPECT_EQ(bytes["h2d_bytes"], 2 * parameters + 2 * router);
  EXPECT_EQ(all["memory_bytes_per_rank"][0]["optimizer"], 0);
  EXPECT_EQ(all["pageable_host_bytes_per_rank"][0], 12 * parameters);
  EXPECT_EQ(all["pinned_host_bytes_per_rank"][0].get<int64_t>(),
            4 * parameters + bytes["value_staging"].get<int64_t>());
  EXPECT_EQ(all["optimizer_offload_fraction"], 1.0);

  const nlohmann::json unpinned =
      plan_with({"optimizer.offload.pin_grads=false", "optimizer.offload.pin_params=false"});
  EXPECT_EQ(unpinned["pinned_host_bytes_per_rank"][0], 0);
  const nlohmann::json& staged = unpinned["optimizer_bytes_per_rank"][0];
  EXPECT_EQ(unpinned["pageable_host_bytes_per_rank"][0].get<int64_t>(),
            12 * parameters + staged["gradient_staging"].get<int64_t>() +
                staged["value_staging"].get<int64_t>());

  const std::string automatic = "optimizer.offload.fraction=auto";
  EXPECT_TRUE(plan_with({automatic})["optimizer_offload_fraction"].is_null());
  const nlohmann::json chosen = plan_with({automatic, "--device-gib", "100"});
  EXPECT_GT(chosen["optimizer_offload_fraction"], 0.0);
  EXPECT_LT(chosen["optimizer_offload_fraction"], 1.0);
  EXPECT_LE(chosen["memory_bytes_per_rank"][0]["total"].get<double>(), 99.0 * (1 << 30));
  EXPECT_EQ(plan_with({"optimizer.offload.enabled=false"})["optimizer_offload_fraction"], 0.0);
  EXPECT_THROW(plan_with({"--device-gib", "0"}), CLI::ValidationError);
}

TEST(PlanCommand, WarnsOfAHostThatIsTooSmall) {
  const RunConfig config =
      load_valid_config(source("configs/quickstart.toml"), {"optimizer.offload.enabled=true"}, 2);
  const Plan plan = make_plan(config, 2, {});
  const int64_t need = plan.memory[0].on_host();
  ASSERT_GT(need, 0);
  EXPECT_EQ(host_warning(plan, config, {need, "there"}), "");
  const std::string warning = host_warning(plan, config, {need - 1, "there"});
  EXPECT_THAT(warning,
              ::testing::StartsWith("warning: if it ran here: the host has too little memory: "));
  EXPECT_THAT(warning, HasSubstr("\n  --> there\n"));
  EXPECT_THAT(warning, HasSubstr("try : checkpoint.async = false"));
  EXPECT_THAT(warning, HasSubstr("or a smaller optimizer.offload.fraction"));
}

TEST(PlanCommand, MegatronsEstimateIsBeside) {
  const std::string config = source("configs/bench/olmoe_8l.toml");
  EXPECT_THAT(output_of({"plan", config}), HasSubstr("beside Megatron-LM's estimator"));
  const auto plan = nlohmann::json::parse(output_of({"plan", config, "--json"}));
  const nlohmann::json& estimate = plan["megatron_estimate"];
  EXPECT_EQ(estimate["total"].get<double>(), estimate["weights_and_optimizer"].get<double>() +
                                                 estimate["activations"].get<double>());
  // Weights, gradients and optimizer state are the same idea in both: within a percent.
  const nlohmann::json& memory = plan["memory_bytes_per_rank"][0];
  const double own = memory["weights"].get<double>() + memory["gradients"].get<double>() +
                     memory["optimizer"].get<double>();
  EXPECT_NEAR(estimate["weights_and_optimizer"].get<double>() / own, 1, 0.01);
}

TEST(PlanCommand, RefusesWhatCannotRun) {
  try {
    output_of({"plan", source("configs/quickstart.toml"), "--ranks", "3"});
    FAIL() << "3 ranks cannot share 16 samples in pairs";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("batch.global = 12 or 18"));
  }
  EXPECT_THROW(output_of({"plan", source("configs/quickstart.toml"), "--ranks", "0"}),
               CLI::ValidationError);
  EXPECT_THROW(output_of({"plan"}), CLI::RequiredError);
}

TEST(ConfigCommand, PrintsDecidedOrAllValues) {
  const std::string config = source("configs/quickstart.toml");
  EXPECT_THAT(output_of({"config", config, "run.seed=5"}), HasSubstr("seed = 5"));
  EXPECT_THAT(output_of({"config", config}), ::testing::Not(HasSubstr("paged_stash")));
  EXPECT_THAT(output_of({"config", config, "--resolved"}), HasSubstr("[paged_stash]"));
  EXPECT_EQ(output_of({"config", "--markdown"}), config_markdown());
  EXPECT_THROW(output_of({"config"}), Error);
}

TEST(Commands, HelpHasAnExample) {
  for (const char* name : {"plan", "config"}) {
    CLI::App root;
    add_plan_command(root);
    add_config_command(root);
    EXPECT_THAT(root.get_subcommand(name)->help(), HasSubstr("Example: ferry ")) << name;
  }
}

}  // namespace
}  // namespace ferry
