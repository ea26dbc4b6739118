#pragma once

// Causal self-attention with grouped queries, and what is applied to its queries and keys.
//
// qkv: [T, (H + 2*KV) * head_dim], T = batch * seq; a row holds H query heads, then KV key heads,
// then KV value heads, as one GEMM writes them. Query head h reads key/value head h / (H / KV).

#include "core/rng.h"
#include "core/tensor.h"

namespace ferry {

struct AttentionDims {
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  int64_t tokens() const { return batch * seq; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

/// Dropout of attention probabilities; element index ((b*H + h)*seq + q)*seq + k of `key`, with b
/// counted from `first_sequence`, h from `first_head`, and H = `all_heads` (0: dims.heads), so that
/// results do not depend on the layout of ranks.
struct AttentionDropout {
  double probability = 0;
  RandomKey key;
  int64_t first_sequence = 0;
  int64_t first_head = 0;
  int64_t all_heads = 0;
};

/// out [T, H*head_dim] = softmax(scale * q k^T, causal) v within each sequence;
/// lse [batch, H, seq] (accumulate_dtype): log of the sum of exponentials, for backward.
/// CUDA: cuDNN where it is built in, the head dim is a multiple of 8 and there is no dropout; else
/// a slower kernel of our own with the same result up to rounding.
void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       const AttentionDims& dims, double scale, const AttentionDropout& dropout);

/// dqkv, same layout as qkv; every element is written. If not `deterministic`, cuDNN may add the
/// parts of dq in the order in which they are ready: faster, and equal inputs give other last bits.
void attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, const AttentionDims& dims,
                        double scale, const AttentionDropout& dropout, bool deterministic = true);

}  // namespace ferry
