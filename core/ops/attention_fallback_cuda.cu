// Attention for what cuDNN does not do: one warp per query (forward, dq) or per key (dk, dv), which
// reads all rows that it attends to. The lanes of a warp share a head's elements; every sum has a
// fixed order. Softmax is normalised online (M. Milakov, N. Gimelshein, 2018).

#include "core/check_cuda.h"
#include "core/ops/attention_backends_cuda.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/rng.h"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr int kThreads = kWarpsPerBlock * 32;
constexpr int64_t kMostHeadDim = 256;

struct Problem {
  int64_t batch, seq, heads, kv_heads, head_dim;
  float scale;
  AttentionDropout dropout;

  __device__ int64_t group() const { return heads / kv_heads; }
  __device__ int64_t q_width() const { return heads * head_dim; }
  __device__ int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  // First elements of heads: of token `t` of all sequences together.
  __device__ int64_t query_at(int64_t t, int64_t h) const { return t * qkv_width() + h * head_dim; }
  __device__ int64_t key_at(int64_t t, int64_t h) const { return query_at(t, heads + h); }
  __device__ int64_t value_at(int64_t t, int64_t h) const {
    return query_at(t, heads + kv_heads + h);
  }
  __device__ int64_t out_at(int64_t t, int64_t h) const { return t * q_width() + h * head_dim; }
  __device__ int64_t lse_at(int64_t b, int64_t h, int64_t query) const {
    return (b * heads + h) * seq + query;
  }
  // 0, or 1 / (1 - p).
  __device__ float keep(int64_t b, int64_t h, int64_t query, int64_t key) const {
    if (dropout.probability == 0) return 1.0f;
    const int64_t head = (b + dropout.first_sequence) * dropout.all_heads + dropout.first_head + h;
    const int64_t row = head * seq + query;
    const auto index = static_cast<uint64_t>(row * seq + key);
    return uniform_at(dropout.key, index) >= dropout.probability
               ? static_cast<float>(1 / (1 - dropout.probability))
               : 0.0f;
  }
};

// A lane's elements lane, lane + 32, ... of one head.
template <int N>
struct Part {
  float x[N];

  template <class T>
  __device__ static Part load(const T* head, int64_t head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Part part;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int element = lane + 32 * i;
      part.x[i] = element < head_dim ? to_float(head[element]) : 0.0f;
    }
    return part;
  }
  template <class T>
  __device__ void store(T* head, int64_t head_dim) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int element = lane + 32 * i;
      if (element < head_dim) head[element] = from_float<T>(x[i]);
    }
  }
  // The whole warp's inner product, in every lane.
  __device__ float dot(const Part& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += x[i] * other.x[i];
    return warp_sum(sum);
  }
  __device__ void add(float factor, const Part& other) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += factor * other.x[i];
  }
  __device__ void multiply(float factor) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] *= factor;
  }
};

// The row of a warp: (sequence, head, position), positions running fastest.
struct Row {
  int64_t b, h, position;
};

__device__ bool find_row(const Problem& p, int64_t num_heads, Row& row) {
  const int64_t index = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / 32;
  if (index >= p.batch * num_heads * p.seq) return false;
  row.position = index % p.seq;
  row.h = index / p.seq % num_heads;
  row.b = index / p.seq / num_heads;
  return true;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(T* out, float* lse, const T* qkv, const Problem p) {
  Row row;
  if (!find_row(p, p.heads, row)) return;
  const int64_t first = row.b * p.seq, query = row.position, kv = row.h / p.group();
  const auto q = Part<N>::load(qkv + p.query_at(first + query, row.h), p.head_dim);
  float largest = -INFINITY, sum = 0;
  Part<N> result{};
  for (int64_t key = 0; key <= query; ++key) {
    const auto k = Part<N>::load(qkv + p.key_at(first + key, kv), p.head_dim);
    const auto v = Part<N>::load(qkv + p.value_at(first + key, kv), p.head_dim);
    const float score = p.scale * q.dot(k);
    if (score > largest) {  // the same in all lanes
      const float shrink = expf(largest - score);
      sum *= shrink;
      result.multiply(shrink);
      largest = score;
    }
    const float weight = expf(score - largest);
    sum += weight;
    result.add(weight * p.keep(row.b, row.h, query, key), v);
  }
  result.multiply(1 / sum);
  result.store(out + p.out_at(first + query, row.h), p.head_dim);
  if (threadIdx.x % 32 == 0) lse[p.lse_at(row.b, row.h, query)] = largest + logf(sum);
}

// With P = exp(scale * q k^T - lse), keep the factors of dropout, delta = rowsum(dout * out):
//   dv = (keep P)^T dout;  dS = scale * P * (keep * (dout v^T) - delta);  dq = dS k;  dk = dS^T q.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    query_gradient_kernel(T* dqkv, float* deltas, const T* dout, const T* out, const float* lse,
                          const T* qkv, const Problem p) {
  Row row;
  if (!find_row(p, p.heads, row)) return;
  const int64_t first = row.b * p.seq, query = row.position, kv = row.h / p.group();
  const auto q = Part<N>::load(qkv + p.query_at(first + query, row.h), p.head_dim);
  const auto dy = Part<N>::load(dout + p.out_at(first + query, row.h), p.head_dim);
  const auto y = Part<N>::load(out + p.out_at(first + query, row.h), p.head_dim);
  const float delta = dy.dot(y);
  const float row_lse = lse[p.lse_at(row.b, row.h, query)];
  if (threadIdx.x % 32 == 0) deltas[p.lse_at(row.b, row.h, query)] = delta;
  Part<N> dq{};
  for (int64_t key = 0; key <= query; ++key) {
    const auto k = Part<N>::load(qkv + p.key_at(first + key, kv), p.head_dim);
    const auto v = Part<N>::load(qkv + p.value_at(first + key, kv), p.head_dim);
    const float probability = expf(p.scale * q.dot(k) - row_lse);
    const float keep = p.keep(row.b, row.h, query, key);
    dq.add(p.scale * probability * (keep * dy.dot(v) - delta), k);
  }
  dq.store(dqkv + p.query_at(first + query, row.h), p.head_dim);
}

// After query_gradient_kernel, which writes the deltas.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    key_gradient_kernel(T* dqkv, const float* deltas, const T* dout, const float* lse, const T* qkv,
                        const Problem p) {
  Row row;
  if (!find_row(p, p.kv_heads, row)) return;
  const int64_t first = row.b * p.seq, key = row.position;
  const auto k = Part<N>::load(qkv + p.key_at(first + key, row.h), p.head_dim);
  const auto v = Part<N>::load(qkv + p.value_at(first + key, row.h), p.head_dim);
  Part<N> dk{}, dv{};
  for (int64_t h = row.h * p.group(); h < (row.h + 1) * p.group(); ++h) {
    for (int64_t query = key; query < p.seq; ++query) {
      const auto q = Part<N>::load(qkv + p.query_at(first + query, h), p.head_dim);
      const auto dy = Part<N>::load(dout + p.out_at(first + query, h), p.head_dim);
      const int64_t at = p.lse_at(row.b, h, query);
      const float probability = expf(p.scale * q.dot(k) - lse[at]);
      const float keep = p.keep(row.b, h, query, key);
      dv.add(keep * probability, dy);
      dk.add(p.scale * probability * (keep * dy.dot(v) - deltas[at]), q);
    }
  }
  dk.store(dqkv + p.key_at(first + key, row.h), p.head_dim);
  dv.store(dqkv + p.value_at(first + key, row.h), p.head_dim);
}

Problem make_problem(const AttentionDims& dims, double scale, const AttentionDropout& dropout) {
  if (dims.head_dim > kMostHeadDim)
    fail(ExitCode::Usage, "attention on a GPU takes head dims up to ", kMostHeadDim, ", not ",
         dims.head_dim, ": use more heads");
  return {dims.batch, dims.seq, dims.heads, dims.kv_heads, dims.head_dim, static_cast<float>(scale),
          dropout};
}

unsigned num_blocks(const AttentionDims& dims, int64_t num_heads) {
  return grid_size(ceil_div(dims.batch * num_heads * dims.seq, kWarpsPerBlock));
}

// Calls body.operator()<T, N>() with the element type, and with N elements per lane for a head.
template <class Body>
void dispatch(DType dtype, int64_t head_dim, Body&& body) {
  dispatch_device_float("attention", dtype, [&]<class T>() {
    if (head_dim <= 32) return body.template operator()<T, 1>();
    if (head_dim <= 64) return body.template operator()<T, 2>();
    if (head_dim <= 128) return body.template operator()<T, 4>();
    body.template operator()<T, 8>();
  });
}

}  // namespace

void fallback_attention_forward(Stream& stream, const Tensor& out, const Tensor& lse,
                                const Tensor& qkv, const AttentionDims& dims, double scale,
                                const AttentionDropout& dropout) {
  const Problem problem = make_problem(dims, scale, dropout);
  dispatch(qkv.dtype(), dims.head_dim, [&]<class T, int N>() {
    forward_kernel<T, N><<<num_blocks(dims, dims.heads), kThreads, 0, cuda_handle(stream)>>>(
        device_data<T>(out), device_data<float>(lse), device_data<T>(qkv), problem);
    CUDA_CHECK(cudaGetLastError());
  });
}

void fallback_attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout,
                                 const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                 const AttentionDims& dims, double scale,
                                 const AttentionDropout& dropout) {
  const Problem problem = make_problem(dims, scale, dropout);
  const Tensor deltas = Tensor::empty(stream, "attention delta", lse.shape(), DType::F32);
  dispatch(qkv.dtype(), dims.head_dim, [&]<class T, int N>() {
    query_gradient_kernel<T, N><<<num_blocks(dims, dims.heads), kThreads, 0, cuda_handle(stream)>>>(
        device_data<T>(dqkv), device_data<float>(deltas), device_data<T>(dout), device_data<T>(out),
        device_data<float>(lse), device_data<T>(qkv), problem);
    CUDA_CHECK(cudaGetLastError());
    key_gradient_kernel<T, N>
        <<<num_blocks(dims, dims.kv_heads), kThreads, 0, cuda_handle(stream)>>>(
            device_data<T>(dqkv), device_data<float>(deltas), device_data<T>(dout),
            device_data<float>(lse), device_data<T>(qkv), problem);
    CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace ferry::cuda
