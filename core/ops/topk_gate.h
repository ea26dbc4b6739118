#pragma once

// The router's gate: softmax scores and the k best experts of each token. All in FP32 (F64 for
// F64): T tokens, E experts, k = top_k <= 32.
//
//   pre-softmax:  probabilities are the k largest of softmax(logits), not renormalised;
//   post-softmax: softmax over the k largest logits.
// Equal logits: the lowest expert wins.

#include "core/tensor.h"

namespace ferry {

struct GateResult {
  Tensor probs;    // [T, k]
  Tensor experts;  // [T, k] I32, best first
  Tensor scores;   // [T, E] softmax over all experts: what auxiliary losses see
  Tensor lse;      // [T] logsumexp(logits): what the z-loss sees
};

/// Writes every tensor of `result`, which the caller allocates.
void topk_gate_forward(Stream& stream, const GateResult& result, const Tensor& logits,
                       bool pre_softmax);

/// dlogits [T, E] = gradient through the chosen probabilities (dprobs [T, k])
///   + through scores, if expert_gradient [E] is defined: d(loss)/d(scores[t, e]) is the same for
///     every token, as the load-balancing loss has it
///   + z_gradient * 2 * lse[t] * scores[t, e], the gradient of z_gradient * sum_t lse[t]^2.
void topk_gate_backward(Stream& stream, const Tensor& dlogits, const Tensor& dprobs,
                        const GateResult& forward, const Tensor& expert_gradient, double z_gradient,
                        bool pre_softmax);

/// The load-balancing loss of Switch and GShard in Megatron's scale, from the statistics of one
/// micro-batch: with P = column sums of scores and n = counts,
///   loss/coefficient = E / (k * T^2) * sum_e P[e] * n[e]     (1 when balanced)
/// total [1] += that (accumulate dtype); expert_gradient [E] = gradient_scale * E / (k * T^2) *
/// n[e], where gradient_scale = coefficient * (weight of the loss in what is differentiated).
void load_balance_loss(Stream& stream, const Tensor& total, const Tensor& expert_gradient,
                       const Tensor& score_sums, const Tensor& counts, int64_t num_tokens,
                       int64_t top_k, double gradient_scale);

}  // namespace ferry
