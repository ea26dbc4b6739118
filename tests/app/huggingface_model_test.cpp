#include "app/huggingface_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/toml_file.h"
#include "tests/app/huggingface_run.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::small_run;
using testing::TempDir;

std::string refusal(const RunConfig& config) {
  try {
    describe_model(config);
  } catch (const Error& error) {
    return concat(static_cast<int>(error.code()), ": ", error.what());
  }
  return "no error";
}

TEST(HuggingfaceModel, TheConfigurationReadsBackAsTheSameModel) {
  for (const auto& overrides : testing::kFamilyRuns) {
    const TempDir dir;
    const ModelDescription model = describe_model(small_run(dir, overrides));
    const HfConfig hf{model, "fp32"};
    const TomlFile file(model_toml(hf));
    const RunConfig config = load_valid_config(file.path(), {}, 0);
    EXPECT_EQ(describe_model(config), model);
    EXPECT_EQ(config.model.precision, "fp32");
  }
}

TEST(HuggingfaceModel, WhatNoArchitectureHasIsRefused) {
  const TempDir dir;
  RunConfig config = small_run(dir, testing::kFamilyRuns[0]);
  EXPECT_EQ(refusal(config), "no error");
  config.model.attention = "mla";
  config.model.precision = "fp64";
  config.moe.shared_ffn = 32;
  config.moe.capacity_factor = 1.5;
  config.moe.router.score = "sigmoid";
  config.moe.router.bias_rate = 1e-3;
  config.moe.router.groups = 2;
  config.moe.router.scaling_factor = 2.5;
  EXPECT_THAT(
      refusal(config),
      AllOf(HasSubstr("2: error: no supported"), HasSubstr("mla"), HasSubstr("fp64"),
            HasSubstr("moe.shared_ffn"), HasSubstr("moe.capacity_factor"), HasSubstr("sigmoid"),
            HasSubstr("bias_rate"), HasSubstr("groups"), HasSubstr("moe.router.scaling_factor")));
  EXPECT_THAT(refusal(small_run(dir)), HasSubstr("moe.layer_freq"));
  config = small_run(dir);
  config.moe.experts = 0;
  EXPECT_THAT(refusal(config), HasSubstr("no experts"));
}

}  // namespace
}  // namespace ferry
