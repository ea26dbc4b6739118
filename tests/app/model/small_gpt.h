#pragma once

// A GPT that is small and has everything.

#include <string>

#include "app/model/gpt.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {

inline constexpr int32_t kVocab = 19;

/// Layers: dense, MoE with shared experts, MoE.
inline GptConfig small(const std::string& precision) {
  GptConfig config;
  ModelConfig& model = config.model;
  model.layers = 3;
  model.hidden = 16;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 4;
  model.ffn = 12;
  model.vocab = kVocab;
  model.seq = 5;
  model.qk_norm = "head";
  model.precision = precision;
  MoeConfig& moe = config.moe;
  moe.experts = 4;
  moe.top_k = 2;
  moe.ffn = 6;
  moe.layer_freq = {0, 1, 1};
  moe.shared_ffn = 5;
  moe.shared_gate = true;
  return config;
}

inline void set_losses(GptConfig& config, double aux_coeff, double z_coeff) {
  config.moe.router.aux_coeff = {aux_coeff};
  config.moe.router.z_coeff = z_coeff;
}

inline void set_dropout(GptConfig& config, double probability) {
  config.model.hidden_dropout = probability;
  config.model.attention_dropout = probability;
}

/// Notes the calls of hooks.
class NotingHooks final : public BlockHooks {
 public:
  void before_forward(Pass&, int block_idx) override { calls += concat(" f", block_idx); }
  void after_backward(Pass&, int block_idx) override { calls += concat(" b", block_idx); }

  std::string calls;
};

/// The model as a Module: x and dy are not used, y are the token losses.
class GptModule final : public Module {
 public:
  explicit GptModule(const GptConfig& config, const std::string& force_routing = "none",
                     const GptRecompute& recompute = {}, const ModelAxes& axes = {})
      : gpt(config, force_routing, 1, axes, whole_model(config), recompute) {}
  Tensor forward(Pass& pass, const Tensor&) override { return gpt.forward(pass, hooks); }
  Tensor backward(Pass& pass, const Tensor&) override {
    gpt.backward(pass, hooks);
    return {};
  }
  void visit(const ParameterVisitor& visitor) override { gpt.visit(visitor); }

  Gpt gpt;
  NotingHooks hooks;
};

inline ModuleRun make_run(Stream& stream, int64_t begin = 0, int64_t end = 4) {
  ModuleRun run;
  run.batch = random_batch(stream, 4, 5, kVocab, 1, begin, end);
  run.key = {9, 3, 0};
  return run;
}

inline GptConfig with_everything(const std::string& precision) {
  GptConfig config = small(precision);
  set_losses(config, 0.02, 0.01);
  set_dropout(config, 0.1);
  return config;
}

}  // namespace ferry::testing
