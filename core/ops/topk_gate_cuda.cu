#include "core/check_cuda.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/topk_gate_kernels.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <cfloat>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxExperts = 1024;

// An integer that is ordered as the logit is: +0 and -0 are equal, NaN is below all others. 0 is
// free for an expert that cannot be chosen.
__device__ inline uint32_t order_of(float logit) {
  if (isnan(logit)) return 1;
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // makes -0 to +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// One warp per token; lane l has experts l, l+32, ..., kPerLane of them. In each of k rounds the
// warp finds the largest remaining logit and, of equal ones, the lowest expert; lane j keeps choice
// j. Reads logits once, writes scores once.
template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(float* probs, int32_t* chosen, float* scores, float* lse, const float* logits,
                   int64_t tokens, int experts, int top_k, bool pre_softmax) {
  const int64_t token = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (token >= tokens) return;
  const float* row = logits + token * experts;
  float v[kPerLane];
  uint32_t order[kPerLane];
  float largest = -FLT_MAX;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    v[i] = e < experts ? row[e] : -INFINITY;
    order[i] = e < experts ? order_of(v[i]) : 0;
    largest = fmaxf(largest, v[i]);
  }
  largest = warp_max(largest);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    v[i] = expf(v[i] - largest);
    sum += v[i];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    v[i] /= sum;
    if (e < experts) scores[token * experts + e] = v[i];
  }
  if (lane == 0) lse[token] = largest + logf(sum);

  int my_expert = 0;
  float my_score = 0;
  for (int j = 0; j < top_k; ++j) {
    uint32_t best = order[0];
    int best_expert = lane;
    float best_score = v[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) {
      if (order[i] > best) {
        best = order[i];
        best_expert = i * 32 + lane;
        best_score = v[i];
      }
    }
    const uint32_t warp_best = __reduce_max_sync(kAllLanes, best);
    const unsigned expert = __reduce_min_sync(
        kAllLanes, best == warp_best ? static_cast<unsigned>(best_expert) : 0xffffffffu);
    const float score = __shfl_sync(kAllLanes, best_score, static_cast<int>(expert % 32));
    if (lane == j) {
      my_expert = static_cast<int>(expert);
      my_score = score;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane == static_cast<int>(expert)) order[i] = 0;
    }
  }

  float prob = my_score;
  if (!pre_softmax) {
    // Of the logits themselves, not of the scores, which may have become 0.
    const float logit = lane < top_k ? row[my_expert] : -INFINITY;
    const float first = __shfl_sync(kAllLanes, logit, 0);
    prob = lane < top_k ? expf(logit - first) : 0.0f;
    prob /= warp_sum(prob);
  }
  if (lane < top_k) {
    probs[token * top_k + lane] = prob;
    chosen[token * top_k + lane] = my_expert;
  }
}

// One warp per token, experts on lanes as in forward. Reads scores once, writes dlogits once.
template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(float* dlogits, const float* dprobs, const float* probs, const int32_t* chosen,
                    const float* scores, const float* lse, const float* expert_gradient,
                    float z_gradient, int64_t tokens, int experts, int top_k, bool pre_softmax) {
  const int64_t token = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (token >= tokens) return;

  // Lane j has choice j. What it adds to its expert: to the gradient of the score, or, where the
  // softmax was over the choices alone, to the gradient of the logit.
  int expert = 0;
  float prob = 0, addend = 0;
  if (lane < top_k) {
    expert = chosen[token * top_k + lane];
    prob = probs[token * top_k + lane];
    addend = dprobs[token * top_k + lane];
  }
  const float chosen_dot = warp_sum(prob * addend);
  if (!pre_softmax) addend = prob * (addend - chosen_dot);

  float s[kPerLane], added[kPerLane], dscore[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    s[i] = e < experts ? scores[token * experts + e] : 0.0f;
    dscore[i] = expert_gradient != nullptr && e < experts ? expert_gradient[e] : 0.0f;
    added[i] = 0;
  }
  for (int j = 0; j < top_k; ++j) {
    const int e = __shfl_sync(kAllLanes, expert, j);
    const float value = __shfl_sync(kAllLanes, addend, j);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane == e) added[i] = value;
    }
  }
  float dot = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (pre_softmax) dscore[i] += added[i];
    dot += s[i] * dscore[i];
  }
  dot = warp_sum(dot);
  const float z = z_gradient * 2 * lse[token];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    const float gradient = s[i] * (dscore[i] - dot + z) + (pre_softmax ? 0.0f : added[i]);
    if (e < experts) dlogits[token * experts + e] = gradient;
  }
}

// One block.
__global__ void __launch_bounds__(kThreads)
    load_balance_kernel(float* total, float* expert_gradient, const float* score_sums,
                        const int32_t* counts, int64_t experts, double factor,
                        double gradient_factor) {
  double sum = 0;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    const double count = counts[e];
    sum += static_cast<double>(score_sums[e]) * count;
    expert_gradient[e] = static_cast<float>(gradient_factor * count);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) total[0] += static_cast<float>(factor * sum);
}

// Calls body.operator()<kPerLane>() with the smallest power of two that holds the experts.
template <class Body>
void choose_per_lane(int64_t experts, Body&& body) {
  if (experts > kMaxExperts) {
    fail(ExitCode::Usage, "the router's gate on a GPU takes at most ", kMaxExperts,
         " experts, not ", experts, ": choose fewer moe.experts, or run.backend=cpu");
  }
  if (experts <= 32) return body.template operator()<1>();
  if (experts <= 64) return body.template operator()<2>();
  if (experts <= 128) return body.template operator()<4>();
  if (experts <= 256) return body.template operator()<8>();
  if (experts <= 512) return body.template operator()<16>();
  body.template operator()<32>();
}

}  // namespace

void topk_gate_forward(Stream& stream, const GateResult& result, const Tensor& logits,
                       bool pre_softmax) {
  require_f32("topk_gate", logits.dtype());
  const int64_t tokens = logits.dim(0), experts = logits.dim(1);
  if (tokens == 0) return;
  choose_per_lane(experts, [&]<int kPerLane>() {
    const unsigned blocks = grid_size(ceil_div(tokens, kThreads / 32));
    forward_kernel<kPerLane><<<blocks, kThreads, 0, cuda_handle(stream)>>>(
        result.probs.data<float>(), result.experts.data<int32_t>(), result.scores.data<float>(),
        result.lse.data<float>(), logits.data<float>(), tokens, static_cast<int>(experts),
        static_cast<int>(result.probs.dim(1)), pre_softmax);
    CUDA_CHECK(cudaGetLastError());
  });
}

void topk_gate_backward(Stream& stream, const Tensor& dlogits, const Tensor& dprobs,
                        const GateResult& forward, const Tensor& expert_gradient, double z_gradient,
                        bool pre_softmax) {
  require_f32("topk_gate", dlogits.dtype());
  const int64_t tokens = dlogits.dim(0), experts = dlogits.dim(1);
  if (tokens == 0) return;
  choose_per_lane(experts, [&]<int kPerLane>() {
    const unsigned blocks = grid_size(ceil_div(tokens, kThreads / 32));
    backward_kernel<kPerLane><<<blocks, kThreads, 0, cuda_handle(stream)>>>(
        dlogits.data<float>(), dprobs.data<float>(), forward.probs.data<float>(),
        forward.experts.data<int32_t>(), forward.scores.data<float>(), forward.lse.data<float>(),
        device_data<float>(expert_gradient), static_cast<float>(z_gradient), tokens,
        static_cast<int>(experts), static_cast<int>(dprobs.dim(1)), pre_softmax);
    CUDA_CHECK(cudaGetLastError());
  });
}

void load_balance_loss(Stream& stream, const Tensor& total, const Tensor& expert_gradient,
                       const Tensor& score_sums, const Tensor& counts, int64_t num_tokens,
                       int64_t top_k, double gradient_scale) {
  require_f32("load_balance_loss", score_sums.dtype());
  const int64_t experts = score_sums.dim(0);
  const double tokens = static_cast<double>(num_tokens);
  const double factor =
      static_cast<double>(experts) / (static_cast<double>(top_k) * tokens * tokens);
  load_balance_kernel<<<1, kThreads, 0, cuda_handle(stream)>>>(
      total.data<float>(), expert_gradient.data<float>(), score_sums.data<float>(),
      counts.data<int32_t>(), experts, factor, gradient_scale * factor);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ferry::cuda
