#include "app/host_sum.h"

#include "core/host_copy.h"

namespace ferry {

double read_total(Stream& stream, const StepTotals& totals, const std::string& name) {
  const auto found = totals.all().find(name);
  return found == totals.all().end() ? 0.0 : read_back_as_double(stream, found->second)[0];
}

void sum_over_ranks(std::vector<double>& values, Group& group, Stream& stream) {
  if (group.size() == 1) return;
  const Tensor tensor =
      from_host(stream, "sum over ranks", values, {static_cast<int64_t>(values.size())});
  group.all_reduce(stream, tensor, ReduceOp::Sum);
  values = read_back<double>(stream, tensor);
}

}  // namespace ferry
