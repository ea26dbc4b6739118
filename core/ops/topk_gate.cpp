#include "core/ops/topk_gate.h"

#include "core/ops/run_op.h"
#include "core/ops/topk_gate_kernels.h"

namespace ferry {
namespace {

constexpr int64_t kMaxTopK = 32;

// T tokens, E experts and k choices as the scores and probabilities have them.
void check_gate(const GateResult& result) {
  CHECK(result.scores.shape().rank() == 2, "scores have shape ", result.scores.shape());
  CHECK(result.probs.shape().rank() == 2, "probs have shape ", result.probs.shape());
  const int64_t tokens = result.scores.dim(0), experts = result.scores.dim(1);
  const int64_t top_k = result.probs.dim(1);
  const DType dtype = result.scores.dtype();
  CHECK(dtype == accumulate_dtype(dtype), "scores are ", name_of(dtype));
  CHECK(1 <= top_k && top_k <= experts && top_k <= kMaxTopK, "top_k is ", top_k, " of ", experts,
        " experts");
  CHECK_SHAPE(result.probs, {tokens, top_k});
  CHECK_SHAPE(result.experts, {tokens, top_k});
  CHECK_SHAPE(result.lse, {tokens});
  CHECK(result.probs.dtype() == dtype, "probs are ", name_of(result.probs.dtype()));
  CHECK(result.experts.dtype() == DType::I32, "experts are ", name_of(result.experts.dtype()));
  CHECK(result.lse.dtype() == dtype, "lse is ", name_of(result.lse.dtype()));
}

}  // namespace

void topk_gate_forward(Stream& stream, const GateResult& result, const Tensor& logits,
                       bool pre_softmax) {
  check_gate(result);
  CHECK_SHAPE(logits, {result.scores.dim(0), result.scores.dim(1)});
  CHECK(logits.dtype() == result.scores.dtype(), "logits are ", name_of(logits.dtype()));
  run_op(stream, cpu::topk_gate_forward, cuda::topk_gate_forward, result, logits, pre_softmax);
}

void topk_gate_backward(Stream& stream, const Tensor& dlogits, const Tensor& dprobs,
                        const GateResult& forward, const Tensor& expert_gradient, double z_gradient,
                        bool pre_softmax) {
  check_gate(forward);
  const DType dtype = forward.scores.dtype();
  CHECK_SHAPE(dlogits, {forward.scores.dim(0), forward.scores.dim(1)});
  CHECK_SHAPE(dprobs, {forward.probs.dim(0), forward.probs.dim(1)});
  CHECK(dlogits.dtype() == dtype, "dlogits are ", name_of(dlogits.dtype()));
  CHECK(dprobs.dtype() == dtype, "dprobs are ", name_of(dprobs.dtype()));
  CHECK(!dlogits.same_memory(forward.scores), "dlogits are the memory of the scores");
  if (expert_gradient.defined()) {
    CHECK_SHAPE(expert_gradient, {forward.scores.dim(1)});
    CHECK(expert_gradient.dtype() == dtype, "expert_gradient is ",
          name_of(expert_gradient.dtype()));
  }
  run_op(stream, cpu::topk_gate_backward, cuda::topk_gate_backward, dlogits, dprobs, forward,
         expert_gradient, z_gradient, pre_softmax);
}

void load_balance_loss(Stream& stream, const Tensor& total, const Tensor& expert_gradient,
                       const Tensor& score_sums, const Tensor& counts, int64_t num_tokens,
                       int64_t top_k, double gradient_scale) {
  CHECK(score_sums.defined() && score_sums.shape().rank() == 1, "score_sums must be [E]");
  const int64_t experts = score_sums.dim(0);
  const DType dtype = score_sums.dtype();
  CHECK(dtype == accumulate_dtype(dtype), "score_sums are ", name_of(dtype));
  CHECK_SHAPE(total, {1});
  CHECK_SHAPE(expert_gradient, {experts});
  CHECK_SHAPE(counts, {experts});
  CHECK(total.dtype() == dtype, "total is ", name_of(total.dtype()));
  CHECK(expert_gradient.dtype() == dtype, "expert_gradient is ", name_of(expert_gradient.dtype()));
  CHECK(counts.dtype() == DType::I32, "counts are ", name_of(counts.dtype()));
  CHECK(num_tokens > 0 && top_k > 0, num_tokens, " tokens, top_k ", top_k);
  run_op(stream, cpu::load_balance_loss, cuda::load_balance_loss, total, expert_gradient,
         score_sums, counts, num_tokens, top_k, gradient_scale);
}

}  // namespace ferry
