#pragma once

// What forward saves for backward, from a model's sizes alone: the records of core/tape.h in the
// order in which the modules save them, with the bytes of each tensor instead of the tensor.
//
// Not counted are tensors whose size does not grow with the tokens (row offsets of experts,
// gradients of the balance loss). Expert rows are those of balanced routing: top_k per token.

#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "app/model/gpt.h"

namespace ferry {

/// How many ranks share a module (see layers/tensor_parallel.h and moe/expert_parallel.h).
struct ModuleShares {
  int64_t tensor = 1;
  bool sequence = false;
  int64_t expert = 1;
  int64_t expert_tensor = 1;
};

/// Whether experts read tokens where they are: moe.gather, and nobody else has some of a token's
/// experts or a part of one. If not, forward copies rows in the order of experts.
bool gathers_rows(const MoeConfig& moe, const ModuleShares& shares);

/// What of it is not kept: labels that the tape discards and rebuilds, and checkpoints.
struct SavedPolicies {
  std::set<Label> discarded;
  GptRecompute recompute;
};

struct TensorCost {
  std::string_view name;
  int64_t rows = 0;
  int64_t width = 0;
  DType dtype = DType::F32;

  int64_t numel() const { return rows * width; }
  int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype)); }
};

/// One save() of a module; tensors are indices. A tensor belongs to the record that saved it last.
struct RecordCost {
  Label label = Label::Layer;
  int64_t layer = -1;  // of the model; -1: the head
  std::vector<size_t> tensors;
  /// Tensors that are not kept, but rebuilt from this record's; they live until it is loaded.
  std::vector<size_t> rebuilt;
  Label rebuilt_as = Label::Layernorm;  // the label they have before another record saves them
  /// Of a checkpoint: what the second forward saves, on a tape that keeps everything.
  std::vector<RecordCost> again;
  /// Of experts that read tokens in place: all rows are in use, so the paged stash leaves them.
  bool gathered = false;
};

struct PassRecords {
  std::vector<TensorCost> tensors;
  std::vector<RecordCost> records;
};

/// Of one micro-batch of `tokens` tokens on a rank that holds `part`.
PassRecords pass_records(const GptConfig& config, const ModelPart& part, int64_t tokens,
                         const ModuleShares& shares = {}, const SavedPolicies& policies = {});

}  // namespace ferry
