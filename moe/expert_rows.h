#pragma once

// From tokens that are on this rank, its own or those of other ranks, to the rows of its experts
// and back. Dispatchers differ in how tokens get here; what they do here is this.
//
// N tokens with k choices each; R rows, ordered by expert and then by token. Choices of experts on
// other ranks have no row: they add nothing to their tokens. Enqueued on the stream that is given;
// tensors are new memory of it.

#include <optional>
#include <string_view>

#include "core/ops/permute.h"
#include "core/pass.h"
#include "moe/expert_parallel.h"
#include "moe/router.h"

namespace ferry {

struct ExpertRows {
  int64_t num_tokens = 0;  // N
  int64_t top_k = 0;
  RoutingPlan plan;       // N * k slots; the experts of this rank, then maybe one for all others
  Tensor offsets;         // [experts of this rank + 1] I32: of the rows in use
  int64_t num_rows = -1;  // R, of rows tensors; -1 until the host knows

  /// Of one rank, which has all experts.
  static ExpertRows of_all(const Routing& routing);
  /// Of this one of several ranks, from the choices [N, k] I32 out of all `num_experts`; they are
  /// overwritten. With a limit that is R, and rows beyond it are left out; step total
  /// "over_capacity" [1] I32 counts if there are any. Without, R is where the offsets end.
  static ExpertRows of_rank(Pass& pass, const Tensor& choices, int64_t num_experts,
                            const ExpertParallel& experts, std::optional<int64_t> limit);

  /// [R, D] from [N, D], in memory of this name. What is beyond the rows in use holds anything.
  Tensor rows_of_tokens(Stream& stream, const Tensor& tokens, std::string_view name) const;
  /// [R] from [N, k], F32 or F64.
  Tensor numbers_of_rows(Stream& stream, const Tensor& by_choice) const;
  /// [N, D] = residual (may be undefined) + the sum over the rows of each token, in order of its
  /// choices, rounded once.
  Tensor tokens_of_rows(Stream& stream, const Tensor& rows, const Tensor& residual,
                        std::string_view name) const;
  /// [N, k] from [R], F32 or F64: 0 for choices without a row.
  Tensor numbers_of_choices(Stream& stream, const Tensor& by_row) const;

 private:
  /// The first rows of a rows tensor, which the plan fills: with a limit above the number of slots
  /// there are more.
  Tensor planned(const Tensor& of_rows) const;
};

}  // namespace ferry
