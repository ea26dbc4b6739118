#pragma once

// The two backends of topk_gate.h. Arguments are already checked.

#include "core/ops/topk_gate.h"

namespace ferry::cpu {

void topk_gate_forward(const GateResult& result, const Tensor& logits, bool pre_softmax);
void topk_gate_backward(const Tensor& dlogits, const Tensor& dprobs, const GateResult& forward,
                        const Tensor& expert_gradient, double z_gradient, bool pre_softmax);
void load_balance_loss(const Tensor& total, const Tensor& expert_gradient, const Tensor& score_sums,
                       const Tensor& counts, int64_t num_tokens, int64_t top_k,
                       double gradient_scale);

}  // namespace ferry::cpu

namespace ferry::cuda {

void topk_gate_forward(Stream& stream, const GateResult& result, const Tensor& logits,
                       bool pre_softmax);
void topk_gate_backward(Stream& stream, const Tensor& dlogits, const Tensor& dprobs,
                        const GateResult& forward, const Tensor& expert_gradient, double z_gradient,
                        bool pre_softmax);
void load_balance_loss(Stream& stream, const Tensor& total, const Tensor& expert_gradient,
                       const Tensor& score_sums, const Tensor& counts, int64_t num_tokens,
                       int64_t top_k, double gradient_scale);

}  // namespace ferry::cuda
