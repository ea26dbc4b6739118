#include "huggingface/tensor_links.h"

#include "core/check.h"

namespace ferry {
namespace {

class Links {
 public:
  explicit Links(const ModelDescription& model) : model_(model), family_(family_of(model)) {}

  std::vector<TensorLink> make() {
    const int64_t hidden = model_.hidden;
    whole("model.embed_tokens.weight", "embedding/weight", {model_.vocab, hidden});
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      const std::string theirs = concat("model.layers.", layer, ".");
      const std::string ours = concat("layers/", layer, "/");
      whole(theirs + "input_layernorm.weight", ours + "attn_norm/weight", {hidden});
      attention(theirs + "self_attn.", ours + "attention/");
      whole(theirs + "post_attention_layernorm.weight", ours + "mlp_norm/weight", {hidden});
      if (model_.is_moe_layer[static_cast<size_t>(layer)])
        experts(theirs + (family_ == HfFamily::Mixtral ? "block_sparse_moe." : "mlp."),
                ours + "moe/");
      else
        dense(theirs + "mlp.", ours + "mlp/");
    }
    whole("model.norm.weight", "final_norm/weight", {hidden});
    if (!model_.tie_embeddings) whole("lm_head.weight", "lm_head/weight", {model_.vocab, hidden});
    return std::move(links_);
  }

 private:
  void whole(const std::string& theirs, const std::string& ours, const Shape& shape) {
    links_.push_back({theirs, shape, "model/" + ours, whole_box(shape)});
  }

  /// Rows [row, row + rows) of our matrix.
  void rows(const std::string& theirs, const std::string& ours, const Shape& global, int64_t row,
            int64_t rows) {
    const Shape part{rows, global[1]};
    links_.push_back({theirs, part, "model/" + ours, {global, {row, 0}, part}});
  }

  void attention(const std::string& theirs, const std::string& ours) {
    const int64_t q = model_.q_width();
    const int64_t kv = model_.kv_width();
    const Shape qkv{q + 2 * kv, model_.hidden};
    rows(theirs + "q_proj.weight", ours + "qkv/weight", qkv, 0, q);
    rows(theirs + "k_proj.weight", ours + "qkv/weight", qkv, q, kv);
    rows(theirs + "v_proj.weight", ours + "qkv/weight", qkv, q + kv, kv);
    if (model_.qk_norm != "none") {
      const bool full = model_.qk_norm == "full";
      whole(theirs + "q_norm.weight", ours + "q_norm/weight", {full ? q : model_.head_dim});
      whole(theirs + "k_norm.weight", ours + "k_norm/weight", {full ? kv : model_.head_dim});
    }
    whole(theirs + "o_proj.weight", ours + "proj/weight", {model_.hidden, q});
  }

  void dense(const std::string& theirs, const std::string& ours) {
    const int64_t ffn = model_.dense_ffn;
    const Shape fc1{2 * ffn, model_.hidden};
    rows(theirs + "gate_proj.weight", ours + "fc1/weight", fc1, 0, ffn);
    rows(theirs + "up_proj.weight", ours + "fc1/weight", fc1, ffn, ffn);
    whole(theirs + "down_proj.weight", ours + "fc2/weight", {model_.hidden, ffn});
  }

  void experts(const std::string& theirs, const std::string& ours) {
    const int64_t hidden = model_.hidden;
    const int64_t ffn = model_.expert_ffn;
    const bool mixtral = family_ == HfFamily::Mixtral;
    const std::string fc1 = "model/" + ours + "experts/fc1/weight";
    const std::string fc2 = "model/" + ours + "experts/fc2/weight";
    const Shape fc1_shape{model_.experts, 2 * ffn, hidden};
    const Shape fc2_shape{model_.experts, hidden, ffn};
    whole(theirs + "gate.weight", ours + "router/weight", {model_.experts, hidden});
    for (int64_t e = 0; e < model_.experts; ++e) {
      const std::string expert = concat(theirs, "experts.", e, ".");
      const auto name = [&](const char* w, const char* proj) {
        return expert + (mixtral ? w : proj) + ".weight";
      };
      links_.push_back(
          {name("w1", "gate_proj"), {ffn, hidden}, fc1, {fc1_shape, {e, 0, 0}, {1, ffn, hidden}}});
      links_.push_back(
          {name("w3", "up_proj"), {ffn, hidden}, fc1, {fc1_shape, {e, ffn, 0}, {1, ffn, hidden}}});
      links_.push_back(
          {name("w2", "down_proj"), {hidden, ffn}, fc2, {fc2_shape, {e, 0, 0}, {1, hidden, ffn}}});
    }
  }

  const ModelDescription& model_;
  HfFamily family_;
  std::vector<TensorLink> links_;
};

}  // namespace

std::vector<TensorLink> tensor_links(const ModelDescription& model) { return Links(model).make(); }

}  // namespace ferry
