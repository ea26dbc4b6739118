#include "app/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
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

class PlanGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(PlanGolden, TextIsTheRecordedOne) {
  const std::string name = GetParam();
  std::ostringstream golden;
  golden << std::ifstream(source("tests/golden/plan/" + name.substr(name.rfind('/') + 1) + ".txt"))
                .rdbuf();
  const RunConfig config = load_valid_config(source("configs/" + name + ".toml"), {}, 1);
  EXPECT_EQ(plan_text(config, 1), golden.str())
      << "if the change is meant: ferry plan configs/" << name << ".toml > tests/golden/plan/...";
}

INSTANTIATE_TEST_SUITE_P(Configs, PlanGolden,
                         ::testing::Values("quickstart", "olmoe_1b_7b", "qwen3_30b_a3b",
                                           "mixtral_8x7b", "bench/olmoe_8l"));

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
  int64_t sum = 0;
  for (const auto& [name, bytes] : olmoe["memory_bytes_per_rank"].items()) {
    if (name != "total") sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(olmoe["memory_bytes_per_rank"]["total"], sum);
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
