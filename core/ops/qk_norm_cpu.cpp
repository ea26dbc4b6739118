#include <algorithm>
#include <cmath>
#include <vector>

#include "core/ops/qk_norm_kernels.h"
#include "core/ops/vector_math_cpu.h"

namespace ferry::cpu {
namespace {

// A piece of a row that is normalised by itself: one head, or all query or all key heads.
struct Segment {
  int64_t begin;  // column
  int64_t size;   // columns
  bool is_query;  // which weight it has
  int64_t rstd_idx;
};

std::vector<Segment> segments_of(const AttentionDims& dims, QkNormKind kind) {
  if (kind == QkNormKind::Full)
    return {{0, dims.q_width(), true, 0}, {dims.q_width(), dims.kv_width(), false, 1}};
  std::vector<Segment> segments;
  for (int64_t head = 0; head < dims.heads + dims.kv_heads; ++head)
    segments.push_back({head * dims.head_dim, dims.head_dim, head < dims.heads, head});
  return segments;
}

template <class T>
void copy_values(const Tensor& y, const Tensor& x, const AttentionDims& dims) {
  if (y.same_memory(x)) return;
  const int64_t width = dims.qkv_width(), begin = dims.q_width() + dims.kv_width();
  for (int64_t t = 0; t < dims.tokens(); ++t)
    std::copy(x.data<T>() + t * width + begin, x.data<T>() + (t + 1) * width,
              y.data<T>() + t * width + begin);
}

template <class T>
void forward(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& q_weight,
             const Tensor& k_weight, const AttentionDims& dims, QkNormKind kind, double eps) {
  using S = compute_t<T>;
  const std::vector<Segment> segments = segments_of(dims, kind);
  copy_values<T>(y, x, dims);
  for (int64_t t = 0; t < dims.tokens(); ++t) {
    for (const Segment& segment : segments) {
      const int64_t first = t * dims.qkv_width() + segment.begin;
      const T* from = x.data<T>() + first;
      T* to = y.data<T>() + first;
      const T* weight = (segment.is_query ? q_weight : k_weight).data<T>();
      const S squares = lane_sum<S>(segment.size, [&](int64_t i) {
        const S value = static_cast<S>(from[i]);
        return value * value;
      });
      const S r = S{1} / std::sqrt(squares / static_cast<S>(segment.size) + static_cast<S>(eps));
      rstd.data<S>()[t * rstd.dim(1) + segment.rstd_idx] = r;
// Element i of `to` depends on element i of `from` only, which may be the same memory.
#pragma GCC ivdep
      for (int64_t i = 0; i < segment.size; ++i)
        to[i] = static_cast<T>(static_cast<S>(from[i]) * r * static_cast<S>(weight[i]));
    }
  }
}

// With xhat = x * rstd and g = dy * weight: dx = rstd * (g - xhat * mean(g * xhat)), dweight += dy
// * xhat.
template <class T>
void backward(const Tensor& dx, const Tensor& dq_weight, const Tensor& dk_weight, const Tensor& dy,
              const Tensor& x, const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight,
              const AttentionDims& dims, QkNormKind kind) {
  using S = compute_t<T>;
  const std::vector<Segment> segments = segments_of(dims, kind);
  copy_values<T>(dx, dy, dims);
  for (int64_t t = 0; t < dims.tokens(); ++t) {
    for (const Segment& segment : segments) {
      const int64_t first = t * dims.qkv_width() + segment.begin;
      const T* in = x.data<T>() + first;
      const T* gradient = dy.data<T>() + first;
      T* to = dx.data<T>() + first;
      const T* weight = (segment.is_query ? q_weight : k_weight).data<T>();
      S* dweight = (segment.is_query ? dq_weight : dk_weight).data<S>();
      const S r = rstd.data<S>()[t * rstd.dim(1) + segment.rstd_idx];
      const S products = lane_sum<S>(segment.size, [&](int64_t i) {
        return static_cast<S>(gradient[i]) * static_cast<S>(weight[i]) * static_cast<S>(in[i]);
      });
      const S mean = products * r / static_cast<S>(segment.size);
// Element i of `to` depends on elements i of the inputs only, which may be the same memory.
#pragma GCC ivdep
      for (int64_t i = 0; i < segment.size; ++i) {
        const S xhat = static_cast<S>(in[i]) * r, dy_i = static_cast<S>(gradient[i]);
        dweight[i] += dy_i * xhat;
        to[i] = static_cast<T>(r * (dy_i * static_cast<S>(weight[i]) - xhat * mean));
      }
    }
  }
}

}  // namespace

void qk_norm_forward(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& q_weight,
                     const Tensor& k_weight, const AttentionDims& dims, QkNormKind kind,
                     double eps) {
  dispatch_float(x.dtype(),
                 [&]<class T>() { forward<T>(y, rstd, x, q_weight, k_weight, dims, kind, eps); });
}

void qk_norm_backward(const Tensor& dx, const Tensor& dq_weight, const Tensor& dk_weight,
                      const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& q_weight,
                      const Tensor& k_weight, const AttentionDims& dims, QkNormKind kind) {
  dispatch_float(x.dtype(), [&]<class T>() {
    backward<T>(dx, dq_weight, dk_weight, dy, x, rstd, q_weight, k_weight, dims, kind);
  });
}

}  // namespace ferry::cpu
