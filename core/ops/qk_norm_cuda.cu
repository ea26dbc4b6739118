#include "core/check_cuda.h"
#include "core/ops/column_sums_cuda.h"
#include "core/ops/packed_cuda.cuh"
#include "core/ops/qk_norm_kernels.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/rmsnorm_rows_cuda.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <algorithm>
#include <type_traits>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxHeadDim = 512;

// Heads of all tokens are numbered through, as they lie in memory: head number u is head
// u % per_token of token u / per_token and begins at element u * head_dim.
struct Heads {
  int total;      // of all tokens
  int per_token;  // H + 2*KV
  int queries;    // H
  int normed;     // H + KV
  int head_dim;
};

Heads heads_of(const AttentionDims& dims) {
  const int64_t per_token = dims.heads + 2 * dims.kv_heads;
  const int64_t total = dims.tokens() * per_token;
  CHECK(total <= INT32_MAX / 2, "qk_norm of ", total, " heads in one call");
  return {static_cast<int>(total), static_cast<int>(per_token), static_cast<int>(dims.heads),
          static_cast<int>(dims.heads + dims.kv_heads), static_cast<int>(dims.head_dim)};
}

// kLanes neighbouring lanes per head, several heads per warp; value heads are copied. Reads x once,
// writes y once.
template <class T, int kWidth, int kLanes, int kVectors>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(T* y, float* rstd, const T* x, const T* q_weight, const T* k_weight,
                   const Heads heads, float eps) {
  constexpr int kHeadsPerWarp = 32 / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int sub = threadIdx.x % 32 / kLanes;
  const int warp = (blockIdx.x * kThreads + threadIdx.x) / 32;
  const int num_warps = gridDim.x * (kThreads / 32);
  // The loop is the same for all lanes of a warp, because they add up together.
  for (int first = warp * kHeadsPerWarp; first < heads.total; first += num_warps * kHeadsPerWarp) {
    const int unit = first + sub;
    const bool here = unit < heads.total;
    const int token = unit / heads.per_token, head = unit % heads.per_token;
    const int64_t begin = static_cast<int64_t>(unit) * heads.head_dim;
    float v[kVectors][kWidth] = {};
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * kLanes + lane) * kWidth;
      if (here && c < heads.head_dim) load<kWidth>(x + begin + c, v[i]);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) squares += v[i][j] * v[i][j];
    }
    squares = warp_sum<kLanes>(squares);
    if (!here) continue;
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(heads.head_dim) + eps);
    const bool normed = head < heads.normed;
    if (normed && lane == 0) rstd[static_cast<int64_t>(token) * heads.normed + head] = scale;
    const T* weight = head < heads.queries ? q_weight : k_weight;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * kLanes + lane) * kWidth;
      if (c >= heads.head_dim) continue;
      if (normed) {
        float w[kWidth];
        load<kWidth>(weight + c, w);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v[i][j] = v[i][j] * scale * w[j];
      }
      store<kWidth>(y + begin + c, v[i]);
    }
  }
}

// As forward_kernel. Each group of kLanes lanes adds up its heads' weight gradients in registers;
// the block adds its groups in order and leaves one row [dq_weight | dk_weight] of `partial`. The
// next head is loaded before the present one is added up, so that loads are always in flight. Reads
// dy and x once, writes dx once.
template <class T, int kWidth, int kLanes, int kVectors>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* dx, float* partial, const T* dy, const T* x, const float* rstd,
                    const T* q_weight, const T* k_weight, const Heads heads) {
  constexpr int kHeadsPerWarp = 32 / kLanes;
  constexpr int kGroups = kThreads / kLanes;
  extern __shared__ float of_group[];  // [kGroups][2 * head_dim]
  const int lane = threadIdx.x % kLanes;
  const int sub = threadIdx.x % 32 / kLanes;
  const int warp = (blockIdx.x * kThreads + threadIdx.x) / 32;
  const int num_warps = gridDim.x * (kThreads / 32);
  using Word = std::conditional_t<kWidth == 1, T, uint4>;
  struct Loaded {
    Word g[kVectors], v[kVectors];
    float scale;
  };
  const auto fetch = [&](int first) {
    Loaded loaded{};
    const int unit = first + sub;
    if (unit >= heads.total) return loaded;
    const int token = unit / heads.per_token, head = unit % heads.per_token;
    const int64_t begin = static_cast<int64_t>(unit) * heads.head_dim;
    const bool normed = head < heads.normed;
    if (normed) loaded.scale = rstd[static_cast<int64_t>(token) * heads.normed + head];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * kLanes + lane) * kWidth;
      if (c >= heads.head_dim) continue;
      loaded.g[i] = *reinterpret_cast<const Word*>(dy + begin + c);
      if (normed) loaded.v[i] = *reinterpret_cast<const Word*>(x + begin + c);
    }
    return loaded;
  };
  float dq[kVectors][kWidth] = {}, dk[kVectors][kWidth] = {};
  const int step = num_warps * kHeadsPerWarp;
  Loaded next = fetch(warp * kHeadsPerWarp);
  for (int first = warp * kHeadsPerWarp; first < heads.total; first += step) {
    const Loaded now = next;
    next = fetch(first + step);
    const int unit = first + sub;
    const bool here = unit < heads.total;
    const int head = unit % heads.per_token;
    const int64_t begin = static_cast<int64_t>(unit) * heads.head_dim;
    const bool normed = here && head < heads.normed;
    const bool query = head < heads.queries;
    const T* weight = query ? q_weight : k_weight;
    const float scale = now.scale;
    float g[kVectors][kWidth], v[kVectors][kWidth];
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      unpack(now.g[i], g[i]);
      unpack(now.v[i], v[i]);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * kLanes + lane) * kWidth;
      if (!normed || c >= heads.head_dim) continue;
      float w[kWidth];
      load<kWidth>(weight + c, w);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float dw = g[i][j] * v[i][j] * scale;
        dq[i][j] += query ? dw : 0.0f;
        dk[i][j] += query ? 0.0f : dw;
        g[i][j] *= w[j];
        dot += g[i][j] * v[i][j];
      }
    }
    dot = warp_sum<kLanes>(dot);
    if (!here) continue;
    const float factor = dot * scale * scale * scale / static_cast<float>(heads.head_dim);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * kLanes + lane) * kWidth;
      if (c >= heads.head_dim) continue;
      if (normed) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) g[i][j] = g[i][j] * scale - v[i][j] * factor;
      }
      store<kWidth>(dx + begin + c, g[i]);
    }
  }
  float* mine = of_group + threadIdx.x / kLanes * (2 * heads.head_dim);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * kLanes + lane) * kWidth;
    if (c >= heads.head_dim) continue;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      mine[c + j] = dq[i][j];
      mine[heads.head_dim + c + j] = dk[i][j];
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * heads.head_dim; c += kThreads) {
    float sum = 0;
    for (int group = 0; group < kGroups; ++group) sum += of_group[group * 2 * heads.head_dim + c];
    partial[static_cast<int64_t>(blockIdx.x) * 2 * heads.head_dim + c] = sum;
  }
}

// Calls body.operator()<kWidth, kLanes, kVectors>().
template <class T, class Body>
void choose_lanes(bool vectors, int64_t head_dim, Body&& body) {
  if (head_dim > kMaxHeadDim) {
    fail(ExitCode::Usage, "qk_norm per head on a GPU takes a head_dim of at most ", kMaxHeadDim,
         ", not ", head_dim, ": choose a smaller model.head_dim, or run.backend=cpu");
  }
  if (vectors && head_dim <= 16 * kVector<T>) {
    body.template operator()<kVector<T>, 16, 1>();
  } else if (vectors && head_dim <= 32 * kVector<T>) {
    body.template operator()<kVector<T>, 32, 1>();
  } else {
    body.template operator()<1, 32, kMaxHeadDim / 32>();
  }
}

// What the two parts of a row of qkv are for the full-width kind.
NormRows query_rows(const AttentionDims& dims) {
  return {.rows = dims.tokens(),
          .columns = dims.q_width(),
          .stride = dims.qkv_width(),
          .rstd_stride = 2};
}
NormRows key_rows(const AttentionDims& dims) {
  return {.rows = dims.tokens(),
          .columns = dims.kv_width(),
          .stride = dims.qkv_width(),
          .rstd_stride = 2};
}

template <class T>
void copy_values(Stream& stream, T* to, const T* from, const AttentionDims& dims) {
  if (to == from) return;
  const int64_t begin = dims.q_width() + dims.kv_width();
  const size_t pitch = dims.qkv_width() * sizeof(T);
  CUDA_CHECK(cudaMemcpy2DAsync(to + begin, pitch, from + begin, pitch, dims.kv_width() * sizeof(T),
                               dims.tokens(), cudaMemcpyDeviceToDevice, cuda_handle(stream)));
}

}  // namespace

void qk_norm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims,
                     QkNormKind kind, double eps) {
  if (dims.tokens() == 0) return;
  dispatch_device_float("qk_norm", x.dtype(), [&]<class T>() {
    T* out = device_data<T>(y);
    const T* in = device_data<T>(x);
    const T* qw = device_data<T>(q_weight);
    const T* kw = device_data<T>(k_weight);
    float* r = rstd.data<float>();
    if (kind == QkNormKind::Full) {
      rmsnorm_rows_forward(stream, x.dtype(), out, r, nullptr, in, nullptr, qw, query_rows(dims),
                           eps);
      rmsnorm_rows_forward(stream, x.dtype(), out + dims.q_width(), r + 1, nullptr,
                           in + dims.q_width(), nullptr, kw, key_rows(dims), eps);
      copy_values(stream, out, in, dims);
      return;
    }
    const Heads heads = heads_of(dims);
    const bool vectors = dims.head_dim % kVector<T> == 0 && aligned16(out, in, qw, kw);
    choose_lanes<T>(vectors, dims.head_dim, [&]<int kWidth, int kLanes, int kVectors>() {
      const unsigned blocks = grid_size(ceil_div(heads.total, kThreads / kLanes));
      forward_kernel<T, kWidth, kLanes, kVectors><<<blocks, kThreads, 0, cuda_handle(stream)>>>(
          out, r, in, qw, kw, heads, static_cast<float>(eps));
      CUDA_CHECK(cudaGetLastError());
    });
  });
}

void qk_norm_backward(Stream& stream, const Tensor& dx, const Tensor& dq_weight,
                      const Tensor& dk_weight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight,
                      const AttentionDims& dims, QkNormKind kind) {
  if (dims.tokens() == 0) return;
  dispatch_device_float("qk_norm", x.dtype(), [&]<class T>() {
    T* out = device_data<T>(dx);
    const T* g = device_data<T>(dy);
    const T* in = device_data<T>(x);
    const T* qw = device_data<T>(q_weight);
    const T* kw = device_data<T>(k_weight);
    const float* r = rstd.data<float>();
    float* dqw = dq_weight.data<float>();
    float* dkw = dk_weight.data<float>();
    if (kind == QkNormKind::Full) {
      rmsnorm_rows_backward(stream, x.dtype(), out, dqw, g, in, r, qw, nullptr, query_rows(dims));
      rmsnorm_rows_backward(stream, x.dtype(), out + dims.q_width(), dkw, g + dims.q_width(),
                            in + dims.q_width(), r + 1, kw, nullptr, key_rows(dims));
      copy_values(stream, out, g, dims);
      return;
    }
    const Heads heads = heads_of(dims);
    const bool vectors = dims.head_dim % kVector<T> == 0 && aligned16(out, g, in, qw, kw);
    choose_lanes<T>(vectors, dims.head_dim, [&]<int kWidth, int kLanes, int kVectors>() {
      constexpr int kGroups = kThreads / kLanes;
      const int64_t blocks = std::min<int64_t>(ceil_div(heads.total, kGroups), kPartialRows);
      const Tensor partial =
          Tensor::empty(stream, "workspace: qk_norm", {blocks, 2 * dims.head_dim}, DType::F32);
      const size_t shared_bytes = kGroups * 2 * dims.head_dim * sizeof(float);
      backward_kernel<T, kWidth, kLanes, kVectors>
          <<<grid_size(blocks), kThreads, shared_bytes, cuda_handle(stream)>>>(
              out, partial.data<float>(), g, in, r, qw, kw, heads);
      CUDA_CHECK(cudaGetLastError());
      sum_columns(stream, dqw, partial.data<float>(), blocks, dims.head_dim, 2 * dims.head_dim,
                  true);
      sum_columns(stream, dkw, partial.data<float>() + dims.head_dim, blocks, dims.head_dim,
                  2 * dims.head_dim, true);
    });
  });
}

}  // namespace ferry::cuda
