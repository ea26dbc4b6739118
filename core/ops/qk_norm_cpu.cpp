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

// Calls body(t, segment, first element of the segment) for all segments of all rows.
template <class Body>
void for_each_segment(const AttentionDims& dims, QkNormKind kind, const Body& body) {
  const std::vector<Segment> segments = segments_of(dims, kind);
  for (int64_t t = 0; t < dims.tokens(); ++t)
    for (const Segment& segment : segments) body(t, segment, t * dims.qkv_width() + segment.begin);
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
compute_t<T> sum_of_squares(const T* x, int64_t size) {
  using S = compute_t<T>;
  return lane_sum<S>(size, [&](int64_t i) {
    const S value = static_cast<S>(x[i]);
    return value * value;
  });
}

template <class T>
compute_t<T> sum_of_products(const T* dy, const T* weight, const T* x, int64_t size) {
  using S = compute_t<T>;
  return lane_sum<S>(size, [&](int64_t i) {
    return static_cast<S>(dy[i]) * static_cast<S>(weight[i]) * static_cast<S>(x[i]);
  });
}

// 1/rms of `size` elements.
template <class S>
S rstd_of(S squares, int64_t size, double eps) {
  return S{1} / std::sqrt(squares / static_cast<S>(size) + static_cast<S>(eps));
}

template <class T>
void normalize(T* y, const T* x, const T* weight, compute_t<T> rstd, int64_t size) {
  using S = compute_t<T>;
// Element i of y depends on element i of x only, which may be the same memory.
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i)
    y[i] = static_cast<T>(static_cast<S>(x[i]) * rstd * static_cast<S>(weight[i]));
}

// With xhat = x * rstd and g = dy * weight: dx = rstd * (g - xhat * mean(g * xhat)), dweight += dy
// * xhat.
template <class T>
void differentiate(T* dx, compute_t<T>* dweight, const T* dy, const T* x, const T* weight,
                   compute_t<T> rstd, compute_t<T> mean, int64_t size) {
  using S = compute_t<T>;
// Element i of dx depends on elements i of the inputs only, which may be the same memory.
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) {
    const S xhat = static_cast<S>(x[i]) * rstd, dy_i = static_cast<S>(dy[i]);
    dweight[i] += dy_i * xhat;
    dx[i] = static_cast<T>(rstd * (dy_i * static_cast<S>(weight[i]) - xhat * mean));
  }
}

}  // namespace

void qk_norm_forward(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& q_weight,
                     const Tensor& k_weight, const AttentionDims& dims, QkNormKind kind,
                     double eps) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    copy_values<T>(y, x, dims);
    for_each_segment(dims, kind, [&](int64_t t, const Segment& segment, int64_t first) {
      const T* from = x.data<T>() + first;
      const T* weight = (segment.is_query ? q_weight : k_weight).data<T>();
      const S r = rstd_of<S>(sum_of_squares(from, segment.size), segment.size, eps);
      rstd.data<S>()[t * rstd.dim(1) + segment.rstd_idx] = r;
      normalize<T>(y.data<T>() + first, from, weight, r, segment.size);
    });
  });
}

void qk_norm_backward(const Tensor& dx, const Tensor& dq_weight, const Tensor& dk_weight,
                      const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& q_weight,
                      const Tensor& k_weight, const AttentionDims& dims, QkNormKind kind) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    copy_values<T>(dx, dy, dims);
    for_each_segment(dims, kind, [&](int64_t t, const Segment& segment, int64_t first) {
      const T* in = x.data<T>() + first;
      const T* gradient = dy.data<T>() + first;
      const T* weight = (segment.is_query ? q_weight : k_weight).data<T>();
      S* dweight = (segment.is_query ? dq_weight : dk_weight).data<S>();
      const S r = rstd.data<S>()[t * rstd.dim(1) + segment.rstd_idx];
      const S products = sum_of_products(gradient, weight, in, segment.size);
      const S mean = products * r / static_cast<S>(segment.size);
      differentiate<T>(dx.data<T>() + first, dweight, gradient, in, weight, r, mean, segment.size);
    });
  });
}

void qk_norm_squares(const Tensor& sums, const Tensor& x, const AttentionDims& dims) {
  dispatch_float(x.dtype(), [&]<class T>() {
    for_each_segment(dims, QkNormKind::Full, [&](int64_t t, const Segment& segment, int64_t first) {
      sums.data<compute_t<T>>()[t * 2 + segment.rstd_idx] =
          sum_of_squares(x.data<T>() + first, segment.size);
    });
  });
}

void qk_norm_apply(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& sums,
                   const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims,
                   int64_t parts, double eps) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    copy_values<T>(y, x, dims);
    for_each_segment(dims, QkNormKind::Full, [&](int64_t t, const Segment& segment, int64_t first) {
      const int64_t idx = t * 2 + segment.rstd_idx;
      const T* weight = (segment.is_query ? q_weight : k_weight).data<T>();
      const S r = rstd_of<S>(sums.data<S>()[idx], parts * segment.size, eps);
      rstd.data<S>()[idx] = r;
      normalize<T>(y.data<T>() + first, x.data<T>() + first, weight, r, segment.size);
    });
  });
}

void qk_norm_products(const Tensor& sums, const Tensor& dy, const Tensor& x, const Tensor& q_weight,
                      const Tensor& k_weight, const AttentionDims& dims) {
  dispatch_float(x.dtype(), [&]<class T>() {
    for_each_segment(dims, QkNormKind::Full, [&](int64_t t, const Segment& segment, int64_t first) {
      const T* weight = (segment.is_query ? q_weight : k_weight).data<T>();
      sums.data<compute_t<T>>()[t * 2 + segment.rstd_idx] =
          sum_of_products(dy.data<T>() + first, weight, x.data<T>() + first, segment.size);
    });
  });
}

void qk_norm_apply_backward(const Tensor& dx, const Tensor& dq_weight, const Tensor& dk_weight,
                            const Tensor& dy, const Tensor& x, const Tensor& rstd,
                            const Tensor& sums, const Tensor& q_weight, const Tensor& k_weight,
                            const AttentionDims& dims, int64_t parts) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    copy_values<T>(dx, dy, dims);
    for_each_segment(dims, QkNormKind::Full, [&](int64_t t, const Segment& segment, int64_t first) {
      const int64_t idx = t * 2 + segment.rstd_idx;
      const T* weight = (segment.is_query ? q_weight : k_weight).data<T>();
      S* dweight = (segment.is_query ? dq_weight : dk_weight).data<S>();
      const S r = rstd.data<S>()[idx];
      const S mean = sums.data<S>()[idx] * r / static_cast<S>(parts * segment.size);
      differentiate<T>(dx.data<T>() + first, dweight, dy.data<T>() + first, x.data<T>() + first,
                       weight, r, mean, segment.size);
    });
  });
}

}  // namespace ferry::cpu
