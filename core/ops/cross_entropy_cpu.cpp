#include <cmath>
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

}  // namespace

void cross_entropy(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
                   const Tensor& labels, const Tensor& mask, bool with_gradient) {
  dispatch_float(logits.dtype(), [&]<class T>() {
    cross_entropy_rows<T>(token_loss, loss_sum, logits, labels, mask, with_gradient);
  });
}

}  // namespace ferry::cpu
