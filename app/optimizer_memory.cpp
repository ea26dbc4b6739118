#include "app/optimizer_memory.h"

#include <algorithm>
#include <map>

#include "app/optimizer_rule.h"
#include "offload/hybrid_device_optimizer.h"

namespace ferry {
namespace {

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

}  // namespace

double first_fraction(const OptimizerOffloadTable& offload) {
  return offload.enabled ? offload.fraction.value_or(1.0) : 0.0;
}

OptimizerBytes optimizer_bytes(const OptimizerTable& optimizer,
                               const std::vector<UpdatedPart>& parts) {
  const auto num_moments = static_cast<int64_t>(make_update_rule(optimizer)->moment_names().size());
  const MomentTypes types = moment_types(optimizer);
  std::vector<int64_t> all_elements;
  std::vector<bool> all_expert;
  for (const UpdatedPart& part : parts) {
    all_elements.push_back(part.elements);
    all_expert.push_back(part.expert);
  }
  const std::vector<bool> on_host =
      choose_for_host(all_elements, all_expert, first_fraction(optimizer.offload),
                      optimizer.offload.takes_last() ? HostPart::Last : HostPart::First);
  OptimizerBytes bytes;
  std::map<DType, int64_t> gradients, values;  // on the host, by type
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [elements, dtype, expert] = parts[i];
    const DType full = accumulate_dtype(dtype);
    if (!on_host[i]) {
      if (dtype != full) bytes.device_masters += bytes_of(full) * elements;
      for (int64_t moment = 0; moment < num_moments; ++moment)
        bytes.device_moments +=
            bytes_of(moment_type(full, types, static_cast<size_t>(moment))) * elements;
      continue;
    }
    bytes.host_masters += bytes_of(full) * elements;
    bytes.host_moments += num_moments * bytes_of(full) * elements;
    bytes.d2h += bytes_of(full) * elements;
    bytes.h2d += bytes_of(dtype) * elements;
    gradients[full] += elements;
    values[dtype] += elements;
  }
  const int64_t chunk = HybridSettings().chunk_elements;  // of one type
  for (const auto& [dtype, elements] : gradients)
    bytes.gradient_staging +=
        bytes_of(dtype) *
        (optimizer.offload.overlap_d2h_h2d ? elements : std::min(elements, chunk));
  constexpr auto returning = static_cast<int64_t>(HybridDeviceOptimizer::kMaxReturning);
  for (const auto& [dtype, elements] : values)
    bytes.value_staging += bytes_of(dtype) * std::min(elements, returning * chunk);
  return bytes;
}

}  // namespace ferry
