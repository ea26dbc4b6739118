#include "huggingface/config_json.h"

#include <set>
#include <vector>

#include "core/check.h"

namespace ferry {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  void complain(const std::string& problem) { problems_.push_back(problem); }

  bool has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }

  int64_t integer(const std::string& key, int64_t high) {
    if (!has(key)) return complain_of(key, "is missing");
    return in_range(key, json_.at(key), high);
  }

  int64_t integer(const std::string& key, int64_t high, int64_t otherwise) {
    return has(key) ? in_range(key, json_.at(key), high) : otherwise;
  }

  double number(const std::string& key, double otherwise) {
    if (!has(key)) return otherwise;
    const Json& value = json_.at(key);
    if (value.is_number() && value.get<double>() >= 0) return value.get<double>();
    complain_of(key, "is no number of at least 0");
    return otherwise;
  }

  double positive(const std::string& key) {
    const double value = number(key, 0);
    if (!has(key)) complain_of(key, "is missing");
    if (has(key) && !(value > 0)) complain_of(key, "is not above 0");
    return value;
  }

  bool flag(const std::string& key, bool otherwise) {
    if (!has(key)) return otherwise;
    if (json_.at(key).is_boolean()) return json_.at(key).get<bool>();
    complain_of(key, "is neither true nor false");
    return otherwise;
  }

  std::string text(const std::string& key, const std::string& otherwise) {
    if (!has(key)) return otherwise;
    if (json_.at(key).is_string()) return json_.at(key).get<std::string>();
    complain_of(key, "is no string");
    return otherwise;
  }

  const Json& json() const { return json_; }

  void finish() const {
    if (problems_.empty()) return;
    std::string text;
    for (const std::string& problem : problems_) text += "\n  why : " + problem;
    fail(ExitCode::Usage, "error: ", where_, " is not of a model that Ferry has", text,
         "\n  try : docs/huggingface.md lists what can be imported");
  }

 private:
  int64_t complain_of(const std::string& key, const std::string& what) {
    complain("'" + key + "' " + what);
    return 1;
  }

  int64_t in_range(const std::string& key, const Json& value, int64_t high) {
    if (value.is_number_unsigned()) {
      const auto number = value.get<uint64_t>();
      if (number >= 1 && number <= static_cast<uint64_t>(high)) return value.get<int64_t>();
    }
    return complain_of(key, concat("is no integer from 1 to ", high));
  }

  const Json& json_;
  std::string where_;
  std::vector<std::string> problems_;
};

void refuse_features(Reader& in) {
  if (in.text("hidden_act", "silu") != "silu") in.complain("'hidden_act' is not silu");
  if (in.flag("attention_bias", false)) in.complain("'attention_bias': there are no biases");
  if (in.has("clip_qkv")) in.complain("'clip_qkv': queries, keys and values are not clipped");
  if (in.has("quantization_config"))
    in.complain("'quantization_config': weights must be BF16 or F32");
  if (in.has("shared_expert_intermediate_size") || in.has("n_shared_experts"))
    in.complain("shared experts are not part of these architectures");
}

double rope_theta(Reader& in) {
  if (in.has("rope_scaling")) in.complain("'rope_scaling': positions are not scaled");
  if (!in.has("rope_parameters")) return in.positive("rope_theta");
  const Json& rope = in.json().at("rope_parameters");
  if (!rope.is_object() || rope.value("rope_type", Json("default")) != Json("default") ||
      !rope.contains("rope_theta") || !rope.at("rope_theta").is_number() ||
      !(rope.at("rope_theta").get<double>() > 0)) {
    in.complain("'rope_parameters' is not {\"rope_type\": \"default\", \"rope_theta\": above 0}");
    return 1;
  }
  return rope.at("rope_theta").get<double>();
}

// A window counts where it is shorter than the positions.
void refuse_window(Reader& in, HfFamily family, int64_t seq) {
  const bool used =
      family == HfFamily::Mixtral ? in.has("sliding_window") : in.flag("use_sliding_window", false);
  if (used && in.integer("sliding_window", int64_t{1} << 40, int64_t{1} << 40) < seq)
    in.complain("'sliding_window': attention is over all earlier positions");
}

std::vector<bool> moe_layers(Reader& in, HfFamily family, int64_t layers) {
  std::vector<bool> moe(static_cast<size_t>(layers), true);
  if (family != HfFamily::Qwen3Moe) return moe;
  const int64_t every = in.integer("decoder_sparse_step", 100000, 1);
  for (int64_t layer = 0; layer < layers; ++layer)
    moe[static_cast<size_t>(layer)] = (layer + 1) % every == 0;
  if (!in.has("mlp_only_layers")) return moe;
  const Json& dense = in.json().at("mlp_only_layers");
  bool good = dense.is_array();
  if (good)
    for (const Json& layer : dense) {
      good = good && layer.is_number_unsigned() && layer.get<uint64_t>() < moe.size();
      if (good) moe[layer.get<size_t>()] = false;
    }
  if (!good) in.complain("'mlp_only_layers' is no list of layers");
  return moe;
}

HfFamily read_family(Reader& in) {
  const std::string type = in.text("model_type", "");
  for (const HfFamily family : {HfFamily::Mixtral, HfFamily::Qwen3Moe, HfFamily::Olmoe})
    if (type == model_type(family)) return family;
  in.complain("'model_type' is '" + type + "', not mixtral, qwen3_moe or olmoe");
  in.finish();
  return HfFamily::Mixtral;
}

}  // namespace

nlohmann::ordered_json to_config_json(const ModelDescription& model, DType dtype) {
  const HfFamily family = family_of(model);
  nlohmann::ordered_json json = {{"architectures", {architecture(family)}},
                                 {"model_type", model_type(family)},
                                 {"torch_dtype", dtype == DType::BF16 ? "bfloat16" : "float32"},
                                 {"num_hidden_layers", model.layers},
                                 {"hidden_size", model.hidden},
                                 {"num_attention_heads", model.heads},
                                 {"num_key_value_heads", model.kv_heads},
                                 {"vocab_size", model.vocab},
                                 {"max_position_embeddings", model.seq},
                                 {"hidden_act", "silu"},
                                 {"rms_norm_eps", model.norm_eps},
                                 {"rope_theta", model.rope_theta},
                                 {"tie_word_embeddings", model.tie_embeddings},
                                 {"initializer_range", model.init_std},
                                 {"attention_dropout", model.attention_dropout},
                                 {"num_experts_per_tok", model.top_k},
                                 {"router_aux_loss_coef", model.aux_coeff},
                                 {"output_router_logits", false},
                                 {"use_cache", true},
                                 {"bos_token_id", nullptr},
                                 {"eos_token_id", nullptr},
                                 {"pad_token_id", nullptr}};
  if (family == HfFamily::Mixtral) {
    json["head_dim"] = model.head_dim;
    json["intermediate_size"] = model.expert_ffn;
    json["num_local_experts"] = model.experts;
    json["router_jitter_noise"] = model.jitter;
    json["sliding_window"] = nullptr;
    return json;
  }
  json["num_experts"] = model.experts;
  json["norm_topk_prob"] = model.renormalise;
  json["attention_bias"] = false;
  if (family == HfFamily::Olmoe) {
    json["intermediate_size"] = model.expert_ffn;
    json["clip_qkv"] = nullptr;
    return json;
  }
  json["head_dim"] = model.head_dim;
  json["intermediate_size"] = model.dense_ffn;
  json["moe_intermediate_size"] = model.expert_ffn;
  json["decoder_sparse_step"] = 1;
  json["use_sliding_window"] = false;
  json["mlp_only_layers"] = nlohmann::ordered_json::array();
  for (size_t layer = 0; layer < model.is_moe_layer.size(); ++layer)
    if (!model.is_moe_layer[layer]) json["mlp_only_layers"].push_back(layer);
  return json;
}

HfConfig parse_config_json(const std::string& text, const std::string& where) {
  const Json json = parse_strict_json(text, where);
  if (!json.is_object()) fail(ExitCode::Storage, "error: ", where, " is not a JSON object");
  Reader in(json, where);
  const HfFamily family = read_family(in);
  const bool mixtral = family == HfFamily::Mixtral;
  constexpr int64_t kWidth = 10'000'000;

  HfConfig config;
  ModelDescription& model = config.model;
  model.layers = in.integer("num_hidden_layers", 100'000);
  model.hidden = in.integer("hidden_size", kWidth);
  model.heads = in.integer("num_attention_heads", 1'000'000);
  model.kv_heads = in.integer("num_key_value_heads", 1'000'000, model.heads);
  model.head_dim = family == HfFamily::Qwen3Moe
                       ? in.integer("head_dim", 1'000'000)
                       : in.integer("head_dim", 1'000'000, model.hidden / model.heads);
  model.vocab = in.integer("vocab_size", 100'000'000);
  model.seq = in.integer("max_position_embeddings", 100'000'000);
  model.experts = in.integer(mixtral ? "num_local_experts" : "num_experts", 1'000'000);
  model.top_k = in.integer("num_experts_per_tok", 1'000'000);
  const int64_t ffn = in.integer("intermediate_size", kWidth);
  model.expert_ffn =
      family == HfFamily::Qwen3Moe ? in.integer("moe_intermediate_size", kWidth) : ffn;
  model.dense_ffn = ffn;
  model.is_moe_layer = moe_layers(in, family, model.layers);
  model.qk_norm = mixtral ? "none" : family == HfFamily::Qwen3Moe ? "head" : "full";
  model.renormalise = mixtral || in.flag("norm_topk_prob", false);
  model.tie_embeddings = in.flag("tie_word_embeddings", false);
  model.norm_eps = in.positive("rms_norm_eps");
  model.rope_theta = rope_theta(in);
  model.init_std = in.number("initializer_range", 0.02);
  model.attention_dropout = in.number("attention_dropout", 0);
  model.aux_coeff = in.number("router_aux_loss_coef", 0);
  model.jitter = in.number("router_jitter_noise", 0);
  refuse_features(in);
  refuse_window(in, family, model.seq);
  // Products of sizes must not overflow, nor lists of tensors fill the memory.
  if (static_cast<double>(model.experts) * static_cast<double>(model.expert_ffn) *
              static_cast<double>(model.hidden) >
          1e15 ||
      static_cast<double>(model.layers) * static_cast<double>(model.experts) > 1e7)
    in.complain("the experts are larger than any that can be read");

  const std::string dtype = in.text("torch_dtype", in.text("dtype", "bfloat16"));
  if (dtype != "bfloat16" && dtype != "float32")
    in.complain("'torch_dtype' is '" + dtype + "', not bfloat16 or float32");
  config.precision = dtype == "float32" ? "fp32" : "bf16";
  in.finish();
  family_of(model);
  return config;
}

nlohmann::json parse_strict_json(const std::string& text, const std::string& where) {
  std::vector<std::set<std::string>> keys;
  std::string doubled;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      doubled = value.get<std::string>();
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, watch);
  } catch (const Json::exception& error) {
    fail(ExitCode::Storage, "error: ", where, " is not JSON: ", error.what());
  }
  if (!doubled.empty())
    fail(ExitCode::Storage, "error: ", where, " has the key '", doubled, "' twice");
  return json;
}

}  // namespace ferry
