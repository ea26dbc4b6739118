#include "app/optimizer_memory.h"

#include <algorithm>
#include <map>

#include "offload/hybrid_device_optimizer.h"

namespace ferry {
namespace {

// Chunks of weights that may be on their way back at once.
constexpr int64_t kChunksReturning = 4;

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

// The sum of the moments of one element on the device.
int64_t device_moments(const OptimizerTable& optimizer, DType full) {
  if (optimizer.name == "sgd") return bytes_of(full);
  const auto moment = [&](const std::string& dtype) {
    return dtype == "bf16" ? bytes_of(DType::BF16) : bytes_of(full);
  };
  return moment(optimizer.exp_avg_dtype) + moment(optimizer.exp_avg_sq_dtype);
}

// Dense and experts are chosen from apart, as offload/optimizer_partition.h has it.
std::vector<bool> chosen_parts(const OptimizerOffloadTable& offload,
                               const std::vector<UpdatedPart>& parts) {
  const HostPart part = offload.takes_last() ? HostPart::Last : HostPart::First;
  std::vector<bool> chosen(parts.size());
  for (const bool expert : {false, true}) {
    std::vector<size_t> members;
    std::vector<int64_t> elements;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].expert != expert) continue;
      members.push_back(i);
      elements.push_back(parts[i].elements);
    }
    const std::vector<bool> on_host = choose_for_host(elements, first_fraction(offload), part);
    for (size_t i = 0; i < members.size(); ++i) chosen[members[i]] = on_host[i];
  }
  return chosen;
}

}  // namespace

double first_fraction(const OptimizerOffloadTable& offload) {
  return offload.enabled ? offload.fraction.value_or(1.0) : 0.0;
}

OptimizerBytes optimizer_bytes(const OptimizerTable& optimizer,
                               const std::vector<UpdatedPart>& parts) {
  const int64_t num_moments = optimizer.name == "sgd" ? 1 : 2;
  const std::vector<bool> on_host = chosen_parts(optimizer.offload, parts);
  OptimizerBytes bytes;
  std::map<DType, int64_t> gradients, values;  // on the host, by type
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [elements, dtype, expert] = parts[i];
    const DType full = accumulate_dtype(dtype);
    if (!on_host[i]) {
      if (dtype != full) bytes.device_masters += bytes_of(full) * elements;
      bytes.device_moments += device_moments(optimizer, full) * elements;
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
  for (const auto& [dtype, elements] : values)
    bytes.value_staging += bytes_of(dtype) * std::min(elements, kChunksReturning * chunk);
  return bytes;
}

}  // namespace ferry
