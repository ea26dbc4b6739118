#include "layers/dropout.h"

#include "core/ops/elementwise.h"
#include "layers/init.h"

namespace ferry {

Dropout::Dropout(const std::string& name, double probability)
    : probability_(probability), site_(random_site(name)) {}

Tensor Dropout::apply(Pass& pass, const Tensor& x) const {
  if (probability_ == 0 || !pass.training) return x;
  const Tensor y = Tensor::empty(pass.stream, "dropout", x.shape(), x.dtype());
  const uint64_t first = static_cast<uint64_t>(pass.batch.first_token * x.dim(1));
  dropout(pass.stream, y, x, probability_, pass.key.at_site(site_), first);
  return y;
}

}  // namespace ferry
