#include "app/host_sum.h"

#include "core/host_copy.h"

namespace ferry {

void sum_over_ranks(std::vector<double>& values, Group& group, Stream& stream) {
  if (group.size() == 1) return;
  const Tensor tensor =
      from_host(stream, "sum over ranks", values, {static_cast<int64_t>(values.size())});
  group.all_reduce(stream, tensor, ReduceOp::Sum);
  values = read_back<double>(stream, tensor);
}

}  // namespace ferry
