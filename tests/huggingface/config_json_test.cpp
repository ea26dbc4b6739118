#include "huggingface/config_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::tiny_model;

nlohmann::ordered_json json_of(HfFamily family, DType dtype = DType::F32) {
  return to_config_json(tiny_model(family), dtype);
}

std::string error_with(HfFamily family, const std::string& key, const nlohmann::json& value) {
  nlohmann::ordered_json json = json_of(family);
  json[key] = value;
  return error_of([&] { parse_config_json(json.dump(), "config.json"); });
}

TEST(ConfigJson, EachFamilyReadsBack) {
  for (const HfFamily family : testing::kFamilies) {
    ModelDescription model = tiny_model(family);
    if (family != HfFamily::Qwen3Moe) model.dense_ffn = model.expert_ffn;
    const HfConfig read = parse_config_json(to_config_json(model, DType::BF16).dump(), "here");
    EXPECT_EQ(read.model, model) << model_type(family);
    EXPECT_EQ(read.precision, "bf16");
  }
  EXPECT_EQ(parse_config_json(json_of(HfFamily::Olmoe).dump(), "here").precision, "fp32");
}

TEST(ConfigJson, HasTheKeysOfTheReleases) {
  const nlohmann::ordered_json mixtral = json_of(HfFamily::Mixtral, DType::BF16);
  EXPECT_EQ(mixtral["architectures"], nlohmann::json({"MixtralForCausalLM"}));
  EXPECT_EQ(mixtral["torch_dtype"], "bfloat16");
  EXPECT_EQ(mixtral["num_local_experts"], 3);
  EXPECT_EQ(mixtral["intermediate_size"], 5);
  EXPECT_TRUE(mixtral["sliding_window"].is_null());
  const nlohmann::ordered_json qwen = json_of(HfFamily::Qwen3Moe);
  EXPECT_EQ(qwen["torch_dtype"], "float32");
  EXPECT_EQ(qwen["mlp_only_layers"], nlohmann::json({0}));
  EXPECT_EQ(qwen["moe_intermediate_size"], 5);
  EXPECT_EQ(qwen["intermediate_size"], 6);
  EXPECT_EQ(qwen["norm_topk_prob"], true);
  EXPECT_EQ(qwen["head_dim"], 4);
  const nlohmann::ordered_json olmoe = json_of(HfFamily::Olmoe);
  EXPECT_EQ(olmoe["norm_topk_prob"], false);
  EXPECT_EQ(olmoe["num_experts"], 3);
  EXPECT_TRUE(olmoe["clip_qkv"].is_null());
}

TEST(ConfigJson, AbsentKeysHaveTheDefaultsOfTheirClass) {
  nlohmann::ordered_json json = json_of(HfFamily::Qwen3Moe);
  for (const char* key : {"norm_topk_prob", "mlp_only_layers", "tie_word_embeddings"})
    json.erase(key);
  json["decoder_sparse_step"] = 2;
  const ModelDescription model = parse_config_json(json.dump(), "here").model;
  EXPECT_FALSE(model.renormalise);
  EXPECT_FALSE(model.tie_embeddings);
  EXPECT_EQ(model.is_moe_layer, (std::vector<bool>{false, true}));
  json = json_of(HfFamily::Olmoe);
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse_config_json(json.dump(), "here").model.kv_heads, 2);
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500.0}};
  EXPECT_EQ(parse_config_json(json.dump(), "here").model.rope_theta, 500.0);
}

TEST(ConfigJson, EveryFeatureThatFerryLacksIsRefused) {
  const HfFamily qwen = HfFamily::Qwen3Moe;
  EXPECT_THAT(error_with(qwen, "hidden_act", "gelu"), HasSubstr("2: error: config.json"));
  EXPECT_THAT(error_with(qwen, "hidden_act", "gelu"), HasSubstr("'hidden_act' is not silu"));
  EXPECT_THAT(error_with(qwen, "attention_bias", true), HasSubstr("'attention_bias'"));
  EXPECT_THAT(error_with(HfFamily::Olmoe, "clip_qkv", 8.0), HasSubstr("'clip_qkv'"));
  EXPECT_THAT(error_with(qwen, "quantization_config", {{"a", 1}}),
              HasSubstr("'quantization_config'"));
  EXPECT_THAT(error_with(qwen, "n_shared_experts", 1), HasSubstr("shared experts"));
  EXPECT_THAT(error_with(qwen, "rope_scaling", {{"type", "yarn"}}), HasSubstr("'rope_scaling'"));
  EXPECT_THAT(error_with(qwen, "rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1.0}}),
              HasSubstr("'rope_parameters'"));
  EXPECT_THAT(error_with(HfFamily::Mixtral, "sliding_window", 8), HasSubstr("'sliding_window'"));
  EXPECT_EQ(error_with(HfFamily::Mixtral, "sliding_window", 16), "no error");
  EXPECT_THAT(error_with(qwen, "torch_dtype", "float16"), HasSubstr("'torch_dtype'"));
  EXPECT_THAT(error_with(qwen, "model_type", "llama"), HasSubstr("not mixtral, qwen3_moe or"));
}

TEST(ConfigJson, ValuesOutOfRangeAreListedTogether) {
  nlohmann::ordered_json json = json_of(HfFamily::Qwen3Moe);
  json.erase("vocab_size");
  json["hidden_size"] = -8;
  json["num_hidden_layers"] = 1e30;
  json["rms_norm_eps"] = 0;
  json["initializer_range"] = "small";
  json["norm_topk_prob"] = 1;
  json["mlp_only_layers"] = {7};
  json["head_dim"] = nullptr;
  json["hidden_act"] = 3;
  EXPECT_THAT(error_of([&] { parse_config_json(json.dump(), "c"); }),
              AllOf(HasSubstr("'vocab_size' is missing"), HasSubstr("'hidden_size' is no integer"),
                    HasSubstr("'num_hidden_layers' is no integer from 1 to 100000"),
                    HasSubstr("'rms_norm_eps' is not above 0"),
                    HasSubstr("'initializer_range' is no number"),
                    HasSubstr("'norm_topk_prob' is neither"), HasSubstr("'mlp_only_layers'"),
                    HasSubstr("'head_dim' is missing"), HasSubstr("'hidden_act' is no string")));
  json = json_of(HfFamily::Qwen3Moe);
  json["num_experts"] = 1'000'000;
  json["moe_intermediate_size"] = 10'000'000;
  json["hidden_size"] = 10'000'000;
  EXPECT_THAT(error_of([&] { parse_config_json(json.dump(), "c"); }), HasSubstr("larger than any"));
}

TEST(ConfigJson, TextThatIsNoObjectIsRefused) {
  EXPECT_THAT(error_of([] { parse_config_json("{", "c"); }), HasSubstr("4: error: c is not JSON"));
  EXPECT_THAT(error_of([] { parse_config_json("[]", "c"); }), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of([] { parse_strict_json(R"({"a": {"b": 1, "b": 2}})", "c"); }),
              HasSubstr("the key 'b' twice"));
  EXPECT_EQ(error_of([] { parse_strict_json(R"({"a": {"b": 1}, "b": [{"b": 2}]})", "c"); }),
            "no error");
}

}  // namespace
}  // namespace ferry
