#include <cmath>
#include <vector>

#include "core/ops/topk_gate_kernels.h"
#include "core/ops/vector_math_cpu.h"

namespace ferry::cpu {
namespace {

// The k largest values of a row in falling order; of equal values the lowest index is first. The
// indices are in range and distinct even if values are NaN, so that later ops stay in bounds.
template <class S>
void select_top_k(int32_t* chosen, std::vector<char>& taken, const S* values, int64_t experts,
                  int64_t top_k) {
  taken.assign(experts, 0);
  for (int64_t k = 0; k < top_k; ++k) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; ++e) {
      if (!taken[e] && (best < 0 || values[e] > values[best])) best = e;
    }
    taken[best] = 1;
    chosen[k] = static_cast<int32_t>(best);
  }
}

template <class S>
S largest(const S* values, int64_t n) {
  S result = values[0];
  for (int64_t i = 1; i < n; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

template <class S>
void forward_rows(const GateResult& result, const Tensor& logits, bool pre_softmax) {
  const int64_t experts = logits.dim(1), top_k = result.probs.dim(1);
  std::vector<char> taken(experts);
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    const S* logit = logits.data<S>() + t * experts;
    S* scores = result.scores.data<S>() + t * experts;
    S* probs = result.probs.data<S>() + t * top_k;
    int32_t* chosen = result.experts.data<int32_t>() + t * top_k;

    const S top = largest(logit, experts);
#pragma GCC ivdep
    for (int64_t e = 0; e < experts; ++e) scores[e] = fast_exp(logit[e] - top);
    const S sum = lane_sum<S>(experts, [&](int64_t e) { return scores[e]; });
    for (int64_t e = 0; e < experts; ++e) scores[e] /= sum;
    result.lse.data<S>()[t] = top + std::log(sum);

    // Softmax keeps the order, so the largest logits are the largest scores; logits decide because
    // scores that differ may round to the same number.
    select_top_k(chosen, taken, logit, experts, top_k);
    if (pre_softmax) {
      for (int64_t k = 0; k < top_k; ++k) probs[k] = scores[chosen[k]];
    } else {
      S chosen_sum = 0;
      for (int64_t k = 0; k < top_k; ++k) {
        probs[k] = fast_exp(logit[chosen[k]] - logit[chosen[0]]);
        chosen_sum += probs[k];
      }
      for (int64_t k = 0; k < top_k; ++k) probs[k] /= chosen_sum;
    }
  }
}

// The gradient g of a softmax s is s * (g - sum of s*g).
template <class S>
void backward_rows(const Tensor& dlogits, const Tensor& dprobs, const GateResult& forward,
                   const Tensor& expert_gradient, S z_gradient, bool pre_softmax) {
  const int64_t experts = dlogits.dim(1), top_k = dprobs.dim(1);
  std::vector<S> dscores(experts);
  for (int64_t t = 0; t < dlogits.dim(0); ++t) {
    const S* scores = forward.scores.data<S>() + t * experts;
    const S* probs = forward.probs.data<S>() + t * top_k;
    const int32_t* chosen = forward.experts.data<int32_t>() + t * top_k;
    const S* dprob = dprobs.data<S>() + t * top_k;
    S* dlogit = dlogits.data<S>() + t * experts;

    const S* from_losses = expert_gradient.defined() ? expert_gradient.data<S>() : nullptr;
    for (int64_t e = 0; e < experts; ++e) dscores[e] = from_losses ? from_losses[e] : S{0};
    if (pre_softmax) {
      for (int64_t k = 0; k < top_k; ++k) dscores[chosen[k]] += dprob[k];
    }
    const S dot = lane_sum<S>(experts, [&](int64_t e) { return scores[e] * dscores[e]; });
    const S z = z_gradient * 2 * forward.lse.data<S>()[t];
    for (int64_t e = 0; e < experts; ++e) dlogit[e] = scores[e] * (dscores[e] - dot + z);

    if (!pre_softmax) {
      S chosen_dot = 0;
      for (int64_t k = 0; k < top_k; ++k) chosen_dot += probs[k] * dprob[k];
      for (int64_t k = 0; k < top_k; ++k) {
        dlogit[chosen[k]] += probs[k] * (dprob[k] - chosen_dot);
      }
    }
  }
}

// The gate has no BF16: S is F32 or F64.
template <class Body>
void dispatch_gate(DType dtype, const Body& body) {
  dtype == DType::F64 ? body.template operator()<double>() : body.template operator()<float>();
}

}  // namespace

void topk_gate_forward(const GateResult& result, const Tensor& logits, bool pre_softmax) {
  dispatch_gate(logits.dtype(), [&]<class S>() { forward_rows<S>(result, logits, pre_softmax); });
}

void topk_gate_backward(const Tensor& dlogits, const Tensor& dprobs, const GateResult& forward,
                        const Tensor& expert_gradient, double z_gradient, bool pre_softmax) {
  dispatch_gate(dlogits.dtype(), [&]<class S>() {
    backward_rows<S>(dlogits, dprobs, forward, expert_gradient, static_cast<S>(z_gradient),
                     pre_softmax);
  });
}

void load_balance_loss(const Tensor& total, const Tensor& expert_gradient, const Tensor& score_sums,
                       const Tensor& counts, int64_t num_tokens, int64_t top_k,
                       double gradient_scale) {
  dispatch_gate(score_sums.dtype(), [&]<class S>() {
    const int64_t experts = score_sums.dim(0);
    const double tokens = static_cast<double>(num_tokens);
    const double factor =
        static_cast<double>(experts) / (static_cast<double>(top_k) * tokens * tokens);
    const int32_t* count = counts.data<int32_t>();
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) {
      sum += static_cast<double>(score_sums.data<S>()[e]) * count[e];
      expert_gradient.data<S>()[e] = static_cast<S>(gradient_scale * factor * count[e]);
    }
    total.data<S>()[0] += static_cast<S>(factor * sum);
  });
}

}  // namespace ferry::cpu
