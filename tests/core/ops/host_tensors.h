#pragma once

// Host memory with room before each tensor, so that views may begin anywhere.

#include <algorithm>
#include <vector>

#include "tests/support/devices.h"

namespace ferry::testing {

class HostTensorTest : public CpuTest {
 protected:
  template <class E>
  Tensor placed(const std::vector<E>& elements, int64_t offset) {
    const auto n = static_cast<int64_t>(elements.size());
    const Tensor all = Tensor::host(device(), "t", {n + offset}, DTypeOf<E>::value);
    std::copy(elements.begin(), elements.end(), all.data<E>() + offset);
    return all.rows(offset, n + offset);
  }
  template <class E>
  static std::vector<E> elements_of(const Tensor& tensor) {
    return {tensor.data<E>(), tensor.data<E>() + tensor.numel()};
  }
};

}  // namespace ferry::testing
