#include <algorithm>
#include <cmath>
#include <vector>

#include "core/ops/attention_kernels.h"
#include "core/ops/blas_cpu.h"
#include "core/ops/softmax_cpu.h"

namespace ferry::cpu {
namespace {

// Queries are taken in blocks, so that scores need block * seq elements and each block multiplies
// only the keys that its last query may see.
constexpr int64_t kQueryBlock = 128;

template <class T>
struct Heads {
  using S = compute_t<T>;

  const AttentionDims& dims;

  int64_t row_elements() const { return dims.seq * dims.head_dim; }

  // [seq, head_dim] of one head, widened, from rows of `width` elements.
  void load(std::vector<S>& head, const T* rows, int64_t width) const {
    head.resize(static_cast<size_t>(row_elements()));
    for (int64_t t = 0; t < dims.seq; ++t)
      for (int64_t i = 0; i < dims.head_dim; ++i)
        head[static_cast<size_t>(t * dims.head_dim + i)] = static_cast<S>(rows[t * width + i]);
  }
  void store(T* rows, int64_t width, const std::vector<S>& head) const {
    for (int64_t t = 0; t < dims.seq; ++t)
      for (int64_t i = 0; i < dims.head_dim; ++i)
        rows[t * width + i] = static_cast<T>(head[static_cast<size_t>(t * dims.head_dim + i)]);
  }
  // First elements of sequence b's heads in rows of qkv.
  int64_t query_at(int64_t b, int64_t head) const {
    return b * dims.seq * dims.qkv_width() + head * dims.head_dim;
  }
  int64_t key_at(int64_t b, int64_t kv_head) const { return query_at(b, dims.heads + kv_head); }
  int64_t value_at(int64_t b, int64_t kv_head) const {
    return query_at(b, dims.heads + dims.kv_heads + kv_head);
  }
  int64_t out_at(int64_t b, int64_t head) const {
    return b * dims.seq * dims.q_width() + head * dims.head_dim;
  }
};

// The factors of dropout on one row of probabilities: 0, or 1 / (1 - p).
template <class S>
class RowDropout {
 public:
  RowDropout(const AttentionDropout& dropout, const AttentionDims& dims, int64_t b, int64_t head)
      : dropout_(dropout),
        seq_(dims.seq),
        first_row_(((b + dropout.first_sequence) * dropout.all_heads + dropout.first_head + head) *
                   dims.seq),
        keep_factor_(static_cast<S>(1 / (1 - dropout.probability))) {}

  bool active() const { return dropout_.probability > 0; }
  S factor(int64_t query, int64_t key) const {
    const auto idx = static_cast<uint64_t>((first_row_ + query) * seq_ + key);
    return uniform_at(dropout_.key, idx) >= dropout_.probability ? keep_factor_ : S{0};
  }

 private:
  const AttentionDropout& dropout_;
  int64_t seq_;
  int64_t first_row_;
  S keep_factor_;
};

template <class T>
void forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const AttentionDims& dims,
             double scale, const AttentionDropout& dropout) {
  using S = compute_t<T>;
  const Heads<T> heads{dims};
  const int64_t d = dims.head_dim, group = dims.heads / dims.kv_heads;
  std::vector<S> q, k, v, scores(static_cast<size_t>(std::min(kQueryBlock, dims.seq) * dims.seq));
  std::vector<S> result(static_cast<size_t>(heads.row_elements()));
  for (int64_t b = 0; b < dims.batch; ++b) {
    for (int64_t head = 0; head < dims.heads; ++head) {
      heads.load(q, qkv.data<T>() + heads.query_at(b, head), dims.qkv_width());
      if (head % group == 0) {
        heads.load(k, qkv.data<T>() + heads.key_at(b, head / group), dims.qkv_width());
        heads.load(v, qkv.data<T>() + heads.value_at(b, head / group), dims.qkv_width());
      }
      const RowDropout<S> row_dropout(dropout, dims, b, head);
      S* row_lse = lse.data<S>() + (b * dims.heads + head) * dims.seq;
      for (int64_t begin = 0; begin < dims.seq; begin += kQueryBlock) {
        const int64_t end = std::min(begin + kQueryBlock, dims.seq), count = end - begin;
        blas_gemm(count, end, d, static_cast<S>(scale), {q.data() + begin * d, d}, Transpose::No,
                  {k.data(), d}, Transpose::Yes, S{0}, {scores.data(), end});
        for (int64_t query = begin; query < end; ++query) {
          S* __restrict row = scores.data() + (query - begin) * end;
          const auto [largest, sum] = exponentials(row, query + 1);
          row_lse[query] = largest + std::log(sum);
          const S inverse = S{1} / sum;
          for (int64_t key = 0; key <= query; ++key) row[key] *= inverse;
          if (row_dropout.active())
            for (int64_t key = 0; key <= query; ++key) row[key] *= row_dropout.factor(query, key);
          std::fill(row + query + 1, row + end, S{0});
        }
        blas_gemm(count, d, end, S{1}, {scores.data(), end}, Transpose::No, {v.data(), d},
                  Transpose::No, S{0}, {result.data() + begin * d, d});
      }
      heads.store(out.data<T>() + heads.out_at(b, head), dims.q_width(), result);
    }
  }
}

// P = exp(scale * q k^T - lse), D = P with dropout, delta = rowsum(dout * out):
//   dv = D^T dout;  dP = dropout of (dout v^T);  dS = scale * P * (dP - delta);  dq = dS k;
//   dk = dS^T q.
// dk and dv of a key head are sums over the query heads that share it.
template <class T>
void backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out, const Tensor& lse,
              const Tensor& qkv, const AttentionDims& dims, double scale,
              const AttentionDropout& dropout) {
  using S = compute_t<T>;
  const Heads<T> heads{dims};
  const int64_t d = dims.head_dim, group = dims.heads / dims.kv_heads;
  const auto scores_size = static_cast<size_t>(std::min(kQueryBlock, dims.seq) * dims.seq);
  const auto head_size = static_cast<size_t>(heads.row_elements());
  std::vector<S> q, k, v, o, go, scores(scores_size), dscores(scores_size);
  std::vector<S> dq(head_size), dk(head_size), dv(head_size);
  for (int64_t b = 0; b < dims.batch; ++b) {
    for (int64_t head = 0; head < dims.heads; ++head) {
      heads.load(q, qkv.data<T>() + heads.query_at(b, head), dims.qkv_width());
      heads.load(o, out.data<T>() + heads.out_at(b, head), dims.q_width());
      heads.load(go, dout.data<T>() + heads.out_at(b, head), dims.q_width());
      if (head % group == 0) {
        heads.load(k, qkv.data<T>() + heads.key_at(b, head / group), dims.qkv_width());
        heads.load(v, qkv.data<T>() + heads.value_at(b, head / group), dims.qkv_width());
        std::fill(dk.begin(), dk.end(), S{0});
        std::fill(dv.begin(), dv.end(), S{0});
      }
      const RowDropout<S> row_dropout(dropout, dims, b, head);
      const S* row_lse = lse.data<S>() + (b * dims.heads + head) * dims.seq;
      for (int64_t begin = 0; begin < dims.seq; begin += kQueryBlock) {
        const int64_t end = std::min(begin + kQueryBlock, dims.seq), count = end - begin;
        blas_gemm(count, end, d, static_cast<S>(scale), {q.data() + begin * d, d}, Transpose::No,
                  {k.data(), d}, Transpose::Yes, S{0}, {scores.data(), end});
        blas_gemm(count, end, d, S{1}, {go.data() + begin * d, d}, Transpose::No, {v.data(), d},
                  Transpose::Yes, S{0}, {dscores.data(), end});
        for (int64_t query = begin; query < end; ++query) {
          S* __restrict p = scores.data() + (query - begin) * end;
          S* __restrict dp = dscores.data() + (query - begin) * end;
          const S* go_row = go.data() + query * d;
          const S* o_row = o.data() + query * d;
          const S delta = lane_sum<S>(d, [&](int64_t i) { return go_row[i] * o_row[i]; });
          const S query_lse = row_lse[query], factor = static_cast<S>(scale);
          for (int64_t key = 0; key <= query; ++key) p[key] = fast_exp(p[key] - query_lse);
          if (row_dropout.active()) {
            for (int64_t key = 0; key <= query; ++key) {
              const S keep = row_dropout.factor(query, key);
              dp[key] = factor * p[key] * (keep * dp[key] - delta);
              p[key] *= keep;
            }
          } else {
            for (int64_t key = 0; key <= query; ++key)
              dp[key] = factor * p[key] * (dp[key] - delta);
          }
          std::fill(p + query + 1, p + end, S{0});
          std::fill(dp + query + 1, dp + end, S{0});
        }
        blas_gemm(end, d, count, S{1}, {scores.data(), end}, Transpose::Yes,
                  {go.data() + begin * d, d}, Transpose::No, S{1}, {dv.data(), d});
        blas_gemm(count, d, end, S{1}, {dscores.data(), end}, Transpose::No, {k.data(), d},
                  Transpose::No, S{0}, {dq.data() + begin * d, d});
        blas_gemm(end, d, count, S{1}, {dscores.data(), end}, Transpose::Yes,
                  {q.data() + begin * d, d}, Transpose::No, S{1}, {dk.data(), d});
      }
      heads.store(dqkv.data<T>() + heads.query_at(b, head), dims.qkv_width(), dq);
      if (head % group == group - 1) {
        heads.store(dqkv.data<T>() + heads.key_at(b, head / group), dims.qkv_width(), dk);
        heads.store(dqkv.data<T>() + heads.value_at(b, head / group), dims.qkv_width(), dv);
      }
    }
  }
}

}  // namespace

void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       const AttentionDims& dims, double scale, const AttentionDropout& dropout) {
  dispatch_float(qkv.dtype(), [&]<class T>() { forward<T>(out, lse, qkv, dims, scale, dropout); });
}

void attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, const AttentionDims& dims,
                        double scale, const AttentionDropout& dropout, bool) {
  dispatch_float(qkv.dtype(),
                 [&]<class T>() { backward<T>(dqkv, dout, out, lse, qkv, dims, scale, dropout); });
}

}  // namespace ferry::cpu
