#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using testing::quickstart;
using testing::violations;

TEST(Validate, TheShippedConfigurationsAreLegal) {
  for (const char* name :
       {"quickstart", "olmoe_1b_7b", "qwen3_30b_a3b", "mixtral_8x7b", "bench/olmoe_8l"}) {
    const std::string path = std::string(FERRY_SOURCE_DIR) + "/configs/" + name + ".toml";
    EXPECT_THAT(validate(load_config(path, {}), 1), ::testing::IsEmpty()) << name;
  }
}

TEST(Validate, TheQuickStartRunsOnEveryPowerOfTwoUpToEight) {
  for (const int64_t ranks : {1, 2, 4, 8}) EXPECT_THAT(violations({}, ranks), ::testing::IsEmpty());
  for (const char* layout :
       {"parallel.expert=8", "parallel.expert=4", "parallel.pipeline=4", "parallel.pipeline=2"}) {
    EXPECT_THAT(violations({layout}, 8), ::testing::IsEmpty()) << layout;
  }
  EXPECT_THAT(violations({"parallel.tensor=2", "parallel.sequence=true", "parallel.expert_tensor=2",
                          "parallel.expert=2", "parallel.pipeline=2"},
                         8),
              ::testing::IsEmpty());
}

TEST(Validate, TextHasFourPartsWithOrigins) {
  const std::vector<std::string> texts = validate(quickstart({"model.kv_heads=3"}), 1);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_THAT(texts[0],
              ::testing::MatchesRegex("error: model.kv_heads does not divide model.heads\n"
                                      "  --> command line +model.kv_heads = 3\n"
                                      "  --> [^ ]*quickstart.toml:[0-9]+:1   model.heads = 4\n"
                                      "  why : 4 query heads mod 3 = 1; .*\n"
                                      "  try : model.kv_heads = 2 or 4"));
}

}  // namespace
}  // namespace ferry
