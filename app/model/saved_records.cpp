#include "app/model/saved_records.h"

#include <algorithm>
#include <utility>

namespace ferry {
namespace {

// Follows the forward pass of the modules.
class Recorder {
 public:
  Recorder(const GptConfig& config, int64_t tokens, const ModuleShares& shares,
           const SavedPolicies& policies)
      : config_(config),
        shares_(shares),
        policies_(policies),
        dtype_(dtype_of(config.model.precision)),
        wide_(accumulate_dtype(dtype_)),
        all_(tokens),
        between_(tokens / (shares.sequence ? shares.tensor : 1)),
        own_(tokens / shares.tensor) {}

  // All layers of the part, some of them in checkpoints.
  void layers(const ModelPart& part) {
    using Layers = GptRecompute::Layers;
    const GptRecompute& recompute = policies_.recompute;
    const bool uniform = recompute.layers == Layers::Uniform;
    const int64_t length = uniform ? recompute.num_layers : 1;
    int64_t recomputed = uniform ? part.num_layers : recompute.num_layers;
    if (recompute.layers == Layers::None) recomputed = 0;
    const int64_t end = part.first_layer + std::min(recomputed, part.num_layers);
    for (int64_t first = part.first_layer; first < end; first += length) {
      layer_ = first;
      const bool distribute = recompute.distribute && !shares_.sequence;
      const size_t input = tensor("input", distribute ? own_ : between_, config_.model.hidden);
      checkpoint(Label::Layer, input, [&] {
        for (int64_t i = first; i < std::min(first + length, end); ++i) layer(i);
      });
    }
    for (int64_t i = end; i < part.first_layer + part.num_layers; ++i) layer(i);
  }

  void head() {
    layer_ = -1;
    norm(Label::FinalNorm);
    save(Label::LossHead, {tensor("gradient", between_, config_.model.hidden)});
  }

  PassRecords take() { return {std::move(tensors_), std::move(records_)}; }

 private:
  size_t tensor(std::string_view name, int64_t rows, int64_t width, DType dtype) {
    tensors_.push_back({name, rows, width, dtype});
    return tensors_.size() - 1;
  }
  size_t tensor(std::string_view name, int64_t rows, int64_t width) {
    return tensor(name, rows, width, dtype_);
  }

  void save(Label label, std::vector<size_t> tensors) {
    records_.push_back({.label = label, .layer = layer_, .tensors = std::move(tensors)});
  }

  // The last record can rebuild the tensor.
  void rebuildable(Label label, size_t tensor) {
    if (is_checkpointed_ || !policies_.discarded.contains(label)) return;
    records_.back().rebuilt.push_back(tensor);
    records_.back().rebuilt_as = label;
  }

  template <class Run>
  void checkpoint(Label label, size_t input, Run&& run) {
    std::vector<RecordCost> outside = std::exchange(records_, {});
    const bool was_checkpointed = std::exchange(is_checkpointed_, true);
    const int64_t layer = layer_;
    run();
    is_checkpointed_ = was_checkpointed;
    outside.push_back(
        {.label = label, .layer = layer, .tensors = {input}, .again = std::exchange(records_, {})});
    records_ = std::move(outside);
  }
  template <class Run>
  void maybe_checkpoint(Label label, size_t input, Run&& run) {
    if (policies_.recompute.modules.contains(label))
      checkpoint(label, input, run);
    else
      run();
  }

  size_t norm(Label label) {
    save(label,
         {tensor("input", between_, config_.model.hidden), tensor("1/rms", between_, 1, wide_)});
    const size_t output = tensor("input", between_, config_.model.hidden);
    rebuildable(Label::Layernorm, output);
    return output;
  }

  void layer(int64_t index) {
    layer_ = index;
    attention(norm(Label::AttnNorm));
    const size_t x = norm(Label::MlpNorm);
    if (!config_.moe.is_moe_layer(index)) {
      maybe_checkpoint(Label::Mlp, x,
                       [&] { mlp(Label::Mlp, x, all_, config_.model.ffn / shares_.tensor); });
    } else {
      maybe_checkpoint(Label::Moe, x, [&] { moe(x); });
    }
  }

  void attention(size_t x) {
    const ModelConfig& model = config_.model;
    const int64_t t = shares_.tensor;
    const int64_t width = (model.q_width() + 2 * model.kv_width()) / t;
    save(Label::QkvLinear, {x});
    const bool full = model.qk_norm == "full";
    if (model.qk_norm != "none") {
      std::vector<size_t> saved{
          tensor("projection", all_, width),
          tensor("1/rms", all_, full ? 2 : (model.heads + model.kv_heads) / t, wide_)};
      if (full && t > 1) saved.push_back(tensor("sums", all_, 2, wide_));
      save(Label::QkNorm, std::move(saved));
    }
    const size_t qkv = tensor("q, k, v", all_, width);
    if (model.qk_norm != "none") rebuildable(Label::Layernorm, qkv);
    const size_t out = tensor("input", all_, model.q_width() / t);
    maybe_checkpoint(Label::CoreAttn, qkv, [&] {
      save(Label::CoreAttn, {qkv, out, tensor("logsumexp", all_, model.heads / t, wide_)});
    });
    save(Label::AttnProj, {out});
  }

  void mlp(Label label, size_t x, int64_t rows, int64_t ffn) {
    save(label, {x, tensor("gate, up", rows, 2 * ffn), tensor("activation", rows, ffn)});
  }

  // Each tensor-parallel rank routes its own tokens.
  void moe(size_t x) {
    const MoeConfig& moe = config_.moe;
    if (shares_.tensor > 1 && !shares_.sequence) x = tensor("input", own_, config_.model.hidden);
    save(Label::Router,
         {x, tensor("probabilities", own_, moe.top_k, wide_),
          tensor("choice", own_, moe.top_k, DType::I32), tensor("scores", own_, moe.experts, wide_),
          tensor("logsumexp", own_, 1, wide_)});
    if (moe.shared_ffn > 0) maybe_checkpoint(Label::SharedExperts, x, [&] { shared_experts(x); });
    experts(x);
  }

  void shared_experts(size_t x) {
    mlp(Label::SharedExperts, x, all_, config_.moe.shared_ffn / shares_.tensor);
    if (config_.moe.shared_gate)
      save(Label::SharedExperts,
           {x, tensor("output", own_, config_.model.hidden), tensor("gate", own_, 1)});
  }

  // Rows that the rank receives: all copies of a row are given to the ranks that share an expert.
  int64_t expert_rows() const {
    const MoeConfig& moe = config_.moe;
    const int64_t rows = own_ * moe.top_k * shares_.expert_tensor;
    if (!moe.rank_capacity_factor || shares_.expert * shares_.expert_tensor == 1) return rows;
    return RankCapacity{.factor = *moe.rank_capacity_factor}.num_rows(rows);
  }

  void experts(size_t x) {
    const MoeConfig& moe = config_.moe;
    const int64_t rows = expert_rows(), ffn = moe.ffn / shares_.expert_tensor;
    const auto label = [&](Label own) { return moe.fused_experts ? Label::FusedGroupMlp : own; };
    if (gathers_rows(moe, shares_)) {
      save(label(Label::ExpertFc1), {x, tensor("order of rows", rows, 1, DType::I32)});
      records_.back().gathered = true;
    } else {
      const size_t input = tensor("input rows", rows, config_.model.hidden);
      rebuildable(Label::MoePermute, input);
      save(label(Label::ExpertFc1), {input});
    }
    save(label(Label::MoeAct),
         {tensor("gate, up", rows, 2 * ffn), tensor("probability", rows, 1, wide_)});
    const size_t h = tensor("activation", rows, ffn);
    rebuildable(Label::MoeAct, h);
    save(label(Label::ExpertFc2), {h});
  }

  const GptConfig& config_;
  const ModuleShares& shares_;
  const SavedPolicies& policies_;
  DType dtype_, wide_;
  int64_t all_, between_, own_;  // tokens inside of tensor-parallel regions, between, of the rank
  int64_t layer_ = -1;
  bool is_checkpointed_ = false;
  std::vector<TensorCost> tensors_;
  std::vector<RecordCost> records_;
};

}  // namespace

bool gathers_rows(const MoeConfig& moe, const ModuleShares& shares) {
  return moe.gather && shares.expert * shares.expert_tensor == 1;
}

PassRecords pass_records(const GptConfig& config, const ModelPart& part, int64_t tokens,
                         const ModuleShares& shares, const SavedPolicies& policies) {
  Recorder recorder(config, tokens, shares, policies);
  recorder.layers(part);
  if (part.head) recorder.head();
  return recorder.take();
}

}  // namespace ferry
