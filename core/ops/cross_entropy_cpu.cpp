#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/ops/cross_entropy_kernels.h"
#include "core/ops/softmax_cpu.h"

namespace ferry::cpu {
namespace {

template <class T>
void cross_entropy_rows(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
                        const Tensor& labels, const Tensor& mask, bool with_gradient) {
  using S = compute_t<T>;
  const int64_t vocab = logits.dim(1);
  std::vector<S> row(static_cast<size_t>(vocab));
  S* __restrict wide = row.data();
  S total = 0;
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    T* __restrict logit = logits.data<T>() + t * vocab;
    const int64_t label = labels.data<int32_t>()[t];
    CHECK(label >= 0 && label < vocab, "label ", t, " is ", label, ", outside of a vocabulary of ",
          vocab);
    const S weight = static_cast<S>(mask.data<float>()[t]);
    const S at_label = static_cast<S>(logit[label]);
    for (int64_t i = 0; i < vocab; ++i) wide[i] = static_cast<S>(logit[i]);
    const auto [largest, sum] = exponentials(wide, vocab);
    const S loss = weight * (largest + std::log(sum) - at_label);
    token_loss.data<S>()[t] = loss;
    total += loss;
    if (!with_gradient) continue;
    const S factor = weight / sum;
    wide[label] -= sum;
    for (int64_t i = 0; i < vocab; ++i) logit[i] = static_cast<T>(wide[i] * factor);
  }
  *loss_sum.data<S>() += total;
}

// The columns of the vocabulary that a part of the logits has.
struct Columns {
  int64_t first;
  int64_t count;  // without padding
  int64_t width;  // with it

  // Where label t is; -1 if another part has it. Padding is at the end of the vocabulary.
  int64_t column_of(const Tensor& labels, int64_t t) const {
    const int64_t label = labels.data<int32_t>()[t], column = label - first;
    CHECK(label >= 0 && (column < count || count == width), "label ", t, " is ", label,
          ", outside of the vocabulary, of which columns [", first, ", ", first + count,
          ") are here, then ", width - count, " of padding");
    return column >= 0 && column < count ? column : -1;
  }
};

template <class T>
void part_rows(const Tensor& statistics, const Tensor& logits, const Tensor& labels,
               const Columns& columns) {
  using S = compute_t<T>;
  std::vector<S> row(static_cast<size_t>(columns.count));
  S* __restrict wide = row.data();
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    const T* logit = logits.data<T>() + t * columns.width;
    const int64_t label = columns.column_of(labels, t);
    SoftmaxSum<S> softmax{-std::numeric_limits<S>::infinity(), 0};
    if (columns.count > 0) {
      for (int64_t i = 0; i < columns.count; ++i) wide[i] = static_cast<S>(logit[i]);
      softmax = exponentials(wide, columns.count);
    }
    S* to = statistics.data<S>() + t * 3;
    to[0] = softmax.largest;
    to[1] = softmax.sum;
    to[2] = label < 0 ? S{0} : static_cast<S>(logit[label]);
  }
}

// What the parts of one row's statistics are together.
template <class S>
struct Joined {
  S largest = -std::numeric_limits<S>::infinity();
  S sum = 0;
  S at_label = 0;
};

template <class S>
Joined<S> join(const Tensor& statistics, int64_t t) {
  const int64_t parts = statistics.dim(0), stride = statistics.dim(1) * 3;
  const S* first = statistics.data<S>() + t * 3;
  Joined<S> joined;
  for (int64_t part = 0; part < parts; ++part)
    joined.largest = std::max(joined.largest, first[part * stride]);
  for (int64_t part = 0; part < parts; ++part) {
    const S* from = first + part * stride;
    joined.sum += from[1] * fast_exp(from[0] - joined.largest);
    joined.at_label += from[2];
  }
  return joined;
}

template <class T>
void join_rows(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
               const Tensor& statistics, const Tensor& labels, const Tensor& mask,
               const Columns& columns, bool with_gradient) {
  using S = compute_t<T>;
  S total = 0;
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    const auto [largest, sum, at_label] = join<S>(statistics, t);
    const S weight = static_cast<S>(mask.data<float>()[t]);
    const S loss = weight * (largest + std::log(sum) - at_label);
    token_loss.data<S>()[t] = loss;
    total += loss;
    if (!with_gradient) continue;
    T* logit = logits.data<T>() + t * columns.width;
    const int64_t label = columns.column_of(labels, t);
    const S factor = weight / sum;
    const int64_t count = columns.count;
    for (int64_t i = 0; i < count; ++i)
      logit[i] = static_cast<T>(fast_exp(static_cast<S>(logit[i]) - largest) * factor);
    if (label >= 0) logit[label] = static_cast<T>((fast_exp(at_label - largest) - sum) * factor);
    std::fill(logit + columns.count, logit + columns.width, static_cast<T>(S{0}));
  }
  *loss_sum.data<S>() += total;
}

}  // namespace

void cross_entropy(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
                   const Tensor& labels, const Tensor& mask, bool with_gradient) {
  dispatch_float(logits.dtype(), [&]<class T>() {
    cross_entropy_rows<T>(token_loss, loss_sum, logits, labels, mask, with_gradient);
  });
}

void cross_entropy_part(const Tensor& statistics, const Tensor& logits, const Tensor& labels,
                        int64_t first_column, int64_t num_columns) {
  dispatch_float(logits.dtype(), [&]<class T>() {
    part_rows<T>(statistics, logits, labels, {first_column, num_columns, logits.dim(1)});
  });
}

void cross_entropy_join(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
                        const Tensor& statistics, const Tensor& labels, const Tensor& mask,
                        int64_t first_column, int64_t num_columns, bool with_gradient) {
  dispatch_float(logits.dtype(), [&]<class T>() {
    join_rows<T>(token_loss, loss_sum, logits, statistics, labels, mask,
                 {first_column, num_columns, logits.dim(1)}, with_gradient);
  });
}

}  // namespace ferry::cpu
