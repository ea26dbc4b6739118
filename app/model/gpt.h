#pragma once

// The GPT: which modules, in which order.
//   embedding -> block x layers -> final norm -> loss head

#include <memory>
#include <string>
#include <vector>

#include "app/model/model_config.h"
#include "core/module.h"
#include "layers/embedding.h"
#include "layers/loss_head.h"
#include "layers/norm.h"

namespace ferry {

class Gpt {
 public:
  /// Builds modules and parameter descriptions; nothing is allocated. `force_routing` and `seed`
  /// are for debug.force_routing.
  Gpt(const GptConfig& config, const std::string& force_routing, uint64_t seed);

  /// Allocates and initialises every parameter's value on the stream's device. Gradients are made
  /// by the optimizer's buckets.
  void initialise(Stream& stream, uint64_t seed);

  /// One micro-batch: fills the step totals; returns the token losses [T].
  Tensor forward(Pass& pass, BlockHooks& hooks);
  /// Its gradients, added to the parameters' gradients.
  void backward(Pass& pass, BlockHooks& hooks);

  /// Every parameter once, in the order of forward.
  void visit(const ParameterVisitor& visitor);
  /// The parameters by block: what a hook may reduce when after_backward(block) is called. Block 0
  /// is the embedding, 1..layers the layers, layers + 1 the final norm and the head.
  std::vector<std::vector<Parameter*>> parameters_by_block();
  int num_blocks() const { return static_cast<int>(blocks_.size()) + 2; }
  /// Names of the step totals "expert_tokens/..." in the order of MoE layers.
  const std::vector<std::string>& expert_count_names() const { return expert_count_names_; }

 private:
  std::unique_ptr<Embedding> embedding_;
  std::vector<std::unique_ptr<Module>> blocks_;
  std::unique_ptr<RmsNorm> final_norm_;
  std::unique_ptr<LossHead> head_;
  std::vector<std::string> expert_count_names_;
};

}  // namespace ferry
