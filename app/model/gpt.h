#pragma once

// The GPT: which modules, in which order.
//   embedding -> block x layers -> final norm -> loss head
// A rank holds all of it, or the part that a stage of a pipeline has; of each module, the part that
// its tensor-parallel and expert-parallel ranks give it.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "app/model/model_config.h"
#include "core/module.h"
#include "layers/embedding.h"
#include "layers/loss_head.h"
#include "layers/norm.h"
#include "layers/part_graphs.h"
#include "layers/recompute.h"
#include "layers/tensor_parallel.h"
#include "moe/expert_parallel.h"

namespace ferry {

/// How ranks share each module.
struct ModelAxes {
  TensorParallel tensor;
  ExpertParallel expert;
};

/// Which modules: layers [first_layer, first_layer + num_layers), with or without the ends.
struct ModelPart {
  bool embedding = true;
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool head = true;  // with the final norm
};
ModelPart whole_model(const GptConfig& config);

/// Which activations backward computes again from a module's input, see layers/recompute.h.
struct GptRecompute {
  std::set<Label> modules;  // of CoreAttn, Mlp (dense layers only), Moe, SharedExperts
  /// Whole layers of a part: all of them, in chunks of num_layers of which the last one may be
  /// shorter, or the first num_layers one by one.
  enum class Layers { None, Uniform, Block } layers = Layers::None;
  int64_t num_layers = 0;
  /// Tensor-parallel ranks without sequence parallelism share the inputs of whole layers: each
  /// saves its 1/tp of the rows, which tp must divide.
  bool distribute = false;
};

/// Which parts are graphs, see layers/part_graphs.h.
struct GptGraphs {
  PartGraphs* graphs = nullptr;  // outlives the model; null: no part
  std::set<Label> parts;         // of Attn, Mlp (dense layers only), Moe, Router, or Layer alone
};

class Gpt {
 public:
  /// Builds modules and parameter descriptions; nothing is allocated, no group is used.
  /// `force_routing` and `seed` are for debug.force_routing.
  Gpt(const GptConfig& config, const std::string& force_routing, uint64_t seed,
      const ModelAxes& axes, const ModelPart& part, const GptRecompute& recompute = {},
      const GptGraphs& graphs = {});
  /// The whole model on one rank.
  Gpt(const GptConfig& config, const std::string& force_routing, uint64_t seed)
      : Gpt(config, force_routing, seed, {}, whole_model(config)) {}

  /// Allocates and initialises every parameter's value on the stream's device. Gradients are made
  /// by the optimizer's buckets.
  void initialise(Stream& stream, uint64_t seed);

  /// One micro-batch. x: the residual stream [rows, hidden], undefined if the part begins with the
  /// embedding. Fills the step totals; returns the residual stream, or with the head the token
  /// losses [T]. Hooks hear of each block once in forward, also if backward computes it again, and
  /// once in backward.
  Tensor forward(Pass& pass, const Tensor& x, BlockHooks& hooks);
  Tensor forward(Pass& pass, BlockHooks& hooks) { return forward(pass, {}, hooks); }
  /// Its gradients, added to the parameters' gradients. dy is undefined with the head; returns dx,
  /// undefined with the embedding.
  Tensor backward(Pass& pass, const Tensor& dy, BlockHooks& hooks);
  void backward(Pass& pass, BlockHooks& hooks) { backward(pass, {}, hooks); }

  /// Every parameter once, in the order of forward.
  void visit(const ParameterVisitor& visitor);
  /// The parameters by block: what a hook may reduce when after_backward(block) is called. The
  /// blocks are the embedding, the layers, and the final norm with the head, as far as they are in
  /// the part; the number of the first one is `first_block`.
  std::vector<std::vector<Parameter*>> parameters_by_block();
  int num_blocks() const;
  /// Null in a part without it.
  LossHead* head() { return head_.get(); }
  void number_blocks_from(int first_block) { first_block_ = first_block; }

  /// The step total "expert_tokens/..." of each MoE layer of the part.
  struct ExpertCounts {
    int64_t moe_layer = 0;  // counted over the whole model
    std::string total;
  };
  const std::vector<ExpertCounts>& expert_counts() const { return expert_counts_; }

 private:
  /// Consecutive layers [begin, end), recomputed together or not at all.
  struct Chunk {
    int64_t begin = 0;
    int64_t end = 0;
    bool recomputed = false;
  };
  static std::vector<Chunk> chunks_of(int64_t num_layers, const GptRecompute& recompute);
  Tensor forward_chunk(Pass& pass, const Chunk& chunk, const Tensor& x, BlockHooks& hooks);
  Tensor backward_chunk(Pass& pass, const Chunk& chunk, const Tensor& dy, BlockHooks& hooks);
  int block_of(int64_t layer_idx) const {
    return first_block_ + (embedding_ ? 1 : 0) + static_cast<int>(layer_idx);
  }

  int first_block_ = 0;
  std::unique_ptr<Embedding> embedding_;
  std::vector<std::unique_ptr<Module>> blocks_;  // the layers
  std::vector<Chunk> chunks_;                    // of all of them
  ActivationCheckpoint layer_input_;             // of chunks that are recomputed
  std::unique_ptr<RmsNorm> final_norm_;
  std::unique_ptr<LossHead> head_;
  std::vector<ExpertCounts> expert_counts_;
};

/// Global names of all parameters of the model.
std::vector<std::string> parameter_names(const GptConfig& config);

}  // namespace ferry
