#pragma once

// Random small models and random ways to share them among ranks, for the test that all layouts give
// the numbers of one rank. A case is a list of overrides, so it can be run with the program, too.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "app/config_file.h"
#include "app/validate.h"

namespace ferry::testing {

struct LayoutCase {
  uint64_t seed = 0;
  int ranks = 1;
  std::vector<std::string> model;   // what is trained, and how
  std::vector<std::string> layout;  // how the ranks share it

  bool fp64() const {
    return std::find(model.begin(), model.end(), "model.precision=fp64") != model.end();
  }
  std::vector<std::string> overrides() const {
    std::vector<std::string> all = model;
    all.insert(all.end(), layout.begin(), layout.end());
    return all;
  }
  /// The command that trains it; without a run directory.
  std::string command() const {
    std::string text =
        concat("mpirun --oversubscribe -n ", ranks, " build/ferry train configs/quickstart.toml");
    for (const std::string& override : overrides()) {
      const bool plain = override.find_first_of("[]()|*'\"") == std::string::npos;
      text += plain ? concat(' ', override) : concat(" '", override, "'");
    }
    return text;
  }
  RunConfig config() const { return load(overrides(), ranks); }
  /// The same training on one rank that has the whole model.
  RunConfig one_rank() const {
    std::vector<std::string> all = model;
    all.push_back("optimizer.distributed=false");
    all.push_back("optimizer.overlap_grad_reduce=false");
    return load(all, 1);
  }
  bool is_legal() const {
    const std::string file = quickstart();
    const ConfigReading shared = read_config(file, overrides());
    const ConfigReading alone = read_config(file, model);
    return shared.errors.empty() && alone.errors.empty() &&
           validate(shared.config, ranks).empty() && validate(alone.config, 1).empty();
  }

 private:
  static std::string quickstart() {
    return std::string(FERRY_SOURCE_DIR) + "/configs/quickstart.toml";
  }
  static RunConfig load(const std::vector<std::string>& overrides, int ranks) {
    return load_valid_config(quickstart(), overrides, ranks);
  }
};

/// Numbers that follow from a seed alone, on every platform.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  /// In [first, last].
  int64_t between(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(engine_() % static_cast<uint64_t>(last - first + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(between(0, std::ssize(values) - 1))];
  }
  int64_t divisor(int64_t number) {
    std::vector<int64_t> divisors;
    for (int64_t i = 1; i <= number; ++i)
      if (number % i == 0) divisors.push_back(i);
    return one_of(divisors);
  }

 private:
  std::mt19937_64 engine_;
};

/// Draws a layout first and then a model that it may divide.
class CaseMaker {
 public:
  CaseMaker(uint64_t seed, int ranks) : draw_(seed), ranks_(ranks) { made_.ranks = ranks; }

  LayoutCase make() {
    draw_grid();
    draw_attention();
    draw_experts();
    draw_pipeline();
    draw_training();
    draw_optimizer();
    draw_memory();
    if (experts_ > 0 && draw_.chance(60)) layout("moe.gather=true");
    return made_;
  }

 private:
  template <class... Parts>
  void model(const Parts&... parts) {
    made_.model.push_back(concat(parts...));
  }
  template <class... Parts>
  void layout(const Parts&... parts) {
    made_.layout.push_back(concat(parts...));
  }
  static const char* text(bool value) { return value ? "true" : "false"; }

  void draw_grid() {
    experts_ = draw_.one_of<int64_t>({0, 2, 4, 4, 8});
    pp_ = draw_.divisor(ranks_);
    const int64_t stage_ranks = ranks_ / pp_;
    tp_ = draw_.divisor(stage_ranks);
    dp_ = stage_ranks / tp_;
    if (experts_ > 0) {
      etp_ = draw_.divisor(stage_ranks);
      ep_ = draw_.divisor(stage_ranks / etp_);
    }
    if (tp_ > 1) layout("parallel.tensor=", tp_);
    sequence_ = tp_ > 1 && draw_.chance(50);
    if (sequence_) layout("parallel.sequence=true");
    if (ep_ > 1) layout("parallel.expert=", ep_);
    if (etp_ > 1) layout("parallel.expert_tensor=", etp_);
    if (pp_ > 1) layout("parallel.pipeline=", pp_);
  }

  void draw_attention() {
    const int64_t kv_heads = tp_ * draw_.one_of<int64_t>({1, 1, 2});
    model("model.hidden=", draw_.one_of<int64_t>({8, 12, 20}));
    model("model.heads=", kv_heads * draw_.between(1, 2));
    model("model.kv_heads=", kv_heads);
    model("model.head_dim=", draw_.one_of<int64_t>({4, 6}));
    model("model.qk_norm=", draw_.one_of<std::string>({"none", "head", "full"}));
    model("model.ffn=", tp_ * draw_.between(3, 7));
    model("model.vocab=", draw_.one_of<int64_t>({19, 33, 40, 50}));
    const bool any_length = tp_ == 1 || (experts_ == 0 && !sequence_);
    model("model.seq=", tp_ * draw_.between(1, 8 / tp_) + (any_length ? 1 : 0));
    model("model.tie_embeddings=", text(draw_.chance(50)));
    // Larger than usual: with small weights all experts and all keys are nearly equal. Still larger
    // ones multiply rounding errors from layer to layer.
    const bool fp64 = draw_.chance(60);
    model("model.precision=", fp64 ? "fp64" : "fp32");
    model("model.init_std=", fp64 && draw_.chance(50) ? "0.3" : "0.1");
    if (draw_.chance(30)) model("model.hidden_dropout=0.1");
    if (draw_.chance(30)) model("model.attention_dropout=0.2");
  }

  void draw_experts() {
    model("moe.experts=", experts_);
    if (experts_ == 0) return model("moe.ffn=0");
    const int64_t top_k = draw_.between(1, std::min<int64_t>(experts_, 3));
    model("moe.top_k=", top_k);
    model("moe.router.pre_softmax=", text(top_k == 1 || draw_.chance(40)));
    model("moe.ffn=", etp_ * draw_.between(2, 5));
    if (draw_.chance(50)) {
      model("moe.shared_ffn=", tp_ * draw_.between(2, 5));
      model("moe.shared_gate=", text(draw_.chance(50)));
    }
    model("moe.router.aux_coeff=", draw_.one_of<std::string>({"0", "0.02", "0.3"}));
    model("moe.router.z_coeff=", draw_.one_of<std::string>({"0", "0.01"}));
    if (draw_.chance(40)) layout("moe.dispatcher=allgather");
    if (draw_.chance(20))
      model("debug.force_routing=",
            draw_.one_of<std::string>({"all_to:[1]", "all_to:[0,1,3]", "skip:[0]", "balanced"}));
  }

  void draw_pipeline() {
    const int64_t chunks = pp_ > 1 ? draw_.one_of<int64_t>({1, 1, 2, 3}) : 1;
    const int64_t stages = pp_ * chunks;
    const bool even = stages <= 6 && draw_.chance(50);
    const int64_t layers = even ? stages * draw_.between(1, 6 / stages) : draw_.between(1, 6);
    if (even && chunks > 1) layout("parallel.virtual_stages=", chunks);
    if (!even && stages > 1) layout("parallel.layout=", draw_stages(layers, stages));
    num_micro_ = chunks > 1 ? draw_.between(pp_, 2 * pp_) : draw_.between(1, 4);
    if (chunks > 1 && draw_.chance(40))
      layout("parallel.microbatch_group=", draw_.between(pp_, num_micro_));

    model("model.layers=", layers);
    if (experts_ == 0) return;
    std::string freq = draw_.one_of<std::string>({"1", "1", "2", ""});
    if (freq.empty()) {
      for (int64_t i = 0; i < layers; ++i) freq += concat(i == 0 ? "[" : ",", draw_.between(0, 1));
      freq += ']';
    }
    model("moe.layer_freq=", freq);
  }

  // Every layer in any stage, in order.
  std::string draw_stages(int64_t layers, int64_t stages) {
    std::string text(static_cast<size_t>(layers), 't');
    for (int64_t i = 1; i < stages; ++i)
      text.insert(static_cast<size_t>(draw_.between(0, std::ssize(text))), 1, '|');
    return "E" + text + "L";
  }

  void draw_training() {
    const int64_t micro = draw_.between(1, 3);
    model("batch.micro=", micro);
    model("batch.global=", micro * dp_ * num_micro_);
    model("run.steps=3");
    model("run.seed=", draw_.between(1, 1000000));
    model("run.eval_every=0");
    model("data.kind=synthetic");
    model("data.tokenizer=''");
    model("data.train=[]");
    model("data.valid=[]");
  }

  void draw_optimizer() {
    model("optimizer.lr=1e-2");
    model("optimizer.warmup_steps=", draw_.between(0, 2));
    model("optimizer.clip_norm=", draw_.one_of<std::string>({"0", "0.1", "1"}));
    // With a tiny eps an element moves by lr even if its gradient is nothing but rounding, and with
    // a small one rounding errors grow a hundredfold in a step.
    model("optimizer.eps=1e-2");
    const bool distributed = draw_.chance(60), overlap = draw_.chance(60);
    layout("optimizer.distributed=", text(distributed));
    layout("optimizer.overlap_grad_reduce=", text(overlap));
    layout("optimizer.overlap_param_gather=", text(distributed && overlap && draw_.chance(60)));
  }

  // Where activations wait for backward, in legal combinations.
  void draw_memory() {
    if (draw_.chance(40)) return;
    const bool recomputes = draw_.chance(60);
    if (recomputes && draw_.chance(30)) {
      layout("recompute.granularity=full");
      layout("recompute.method=", draw_.one_of<std::string>({"uniform", "block"}));
      layout("recompute.num_layers=", draw_.between(1, 3));
      const bool can_share = tp_ > 1 && !sequence_ && experts_ > 0;  // then tp divides the tokens
      if (can_share && draw_.chance(50)) layout("recompute.distribute_saved_activations=true");
      return;
    }
    std::vector<std::string> recomputed;
    if (recomputes) {
      for (const char* module :
           {"core_attn", "layernorm", "moe_act", "moe_permute", "mlp", "moe", "shared_experts"})
        if (draw_.chance(40)) recomputed.push_back(module);
      if (recomputed.empty()) recomputed.push_back("layernorm");
      layout("recompute.granularity=selective");
      layout("recompute.modules=", list_of(recomputed));
    }
    if (draw_.chance(30)) return;
    const bool has_experts =
        std::find(recomputed.begin(), recomputed.end(), "moe") == recomputed.end();
    std::vector<std::string> moved{"qkv_linear"};
    for (const char* module : {"attn_norm", "core_attn", "mlp_norm"})
      if (draw_.chance(60)) moved.push_back(module);
    if (std::find(moved.begin(), moved.end(), "core_attn") != moved.end() && draw_.chance(50))
      moved.push_back("attn_proj");
    const bool has_rows = has_experts && std::find(recomputed.begin(), recomputed.end(),
                                                   "moe_permute") == recomputed.end();
    if (has_rows && draw_.chance(60)) moved.push_back("expert_fc1");
    if (has_experts && draw_.chance(60)) moved.push_back("moe_act");
    layout("activation_offload.enabled=true");
    layout("activation_offload.modules=", list_of(moved));
    layout("activation_offload.min_tensor_elements=", draw_.one_of<int64_t>({0, 1, 64}));
    layout("activation_offload.fraction=",
           draw_.one_of<std::string>({"0", "0.4", "0.75", "1", "1"}));
    if (draw_.chance(40))
      layout("activation_offload.max_inflight=", draw_.one_of<int64_t>({0, 1, 3}));
    if (draw_.chance(30))
      layout("activation_offload.delta_bytes_across_pipeline=", draw_.between(1, 4000));
  }

  static std::string list_of(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "[" : ",") + name;
    return text + "]";
  }

  Draw draw_;
  int64_t ranks_;
  LayoutCase made_;
  int64_t experts_ = 0, num_micro_ = 1;
  bool sequence_ = false;
  int64_t tp_ = 1, dp_ = 1, pp_ = 1, ep_ = 1, etp_ = 1;
};

/// The legal case of this seed, the same one always. `ranks` of 0: 1, 2, 4 or 8.
inline LayoutCase make_layout_case(uint64_t seed, int ranks = 0) {
  Draw draw(seed);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int size = ranks > 0 ? ranks : draw.one_of<int>({1, 2, 4, 4, 8, 8});
    LayoutCase made =
        CaseMaker(static_cast<uint64_t>(draw.between(0, int64_t{1} << 60)), size).make();
    made.seed = seed;
    if (made.is_legal()) return made;
  }
  fail(ExitCode::Internal, "seed ", seed, " leads to no legal case");
}

}  // namespace ferry::testing
