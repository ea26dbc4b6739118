#include "core/pass.h"

namespace ferry {

Tensor StepTotals::get(Stream& stream, const std::string& name, const Shape& shape, DType dtype) {
  auto found = totals_.find(name);
  if (found == totals_.end()) {
    Tensor total = Tensor::empty(stream, "step totals", shape, dtype);
    stream.zero(total);
    found = totals_.emplace(name, total).first;
  }
  CHECK(found->second.shape() == shape && found->second.dtype() == dtype, "step total '", name,
        "' is ", found->second.shape(), ", asked for as ", shape);
  return found->second;
}

}  // namespace ferry
