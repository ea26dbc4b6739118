#include "layers/dropout.h"

#include "core/ops/elementwise.h"
#include "layers/init.h"

namespace ferry {

Dropout::Dropout(const std::string& name, double probability, const TensorParallel& tensor)
    : probability_(probability), site_(random_site(name)), tensor_(tensor) {}

Tensor Dropout::apply(Pass& pass, const Tensor& x) const {
  if (probability_ == 0 || !pass.training) return x;
  const Tensor y = Tensor::empty(pass.stream, "dropout", x.shape(), x.dtype());
  const int64_t first_token = pass.batch.first_token + tensor_.first_row(x.dim(0));
  dropout(pass.stream, y, x, probability_, pass.key.at_site(site_),
          static_cast<uint64_t>(first_token * x.dim(1)));
  return y;
}

}  // namespace ferry
