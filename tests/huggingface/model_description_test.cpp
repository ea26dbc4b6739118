#include "huggingface/model_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::tiny_model;

TEST(ModelDescription, TheNormOfQueriesAndKeysChoosesTheFamily) {
  for (const HfFamily family : testing::kFamilies) EXPECT_EQ(family_of(tiny_model(family)), family);
}

TEST(ModelDescription, EveryReasonIsNamed) {
  ModelDescription model = tiny_model(HfFamily::Mixtral);
  model.renormalise = false;
  model.is_moe_layer = {true, false};
  EXPECT_THAT(error_of([&] { family_of(model); }),
              AllOf(HasSubstr("2: error: MixtralForCausalLM"), HasSubstr("pre_softmax"),
                    HasSubstr("moe.layer_freq")));
  model = tiny_model(HfFamily::Olmoe);
  model.head_dim = 6;
  EXPECT_THAT(error_of([&] { family_of(model); }),
              AllOf(HasSubstr("2: error: OlmoeForCausalLM"), HasSubstr("head_dim")));
  model = tiny_model(HfFamily::Qwen3Moe);
  model.experts = 0;
  EXPECT_THAT(error_of([&] { family_of(model); }),
              AllOf(HasSubstr("2: error: Qwen3MoeForCausalLM"), HasSubstr("no experts")));
}

}  // namespace
}  // namespace ferry
