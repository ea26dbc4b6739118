#include "app/optimizer_memory.h"

#include <algorithm>

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
  int64_t widest_gradient = 0, widest_value = 0;
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
    widest_gradient = std::max(widest_gradient, bytes_of(full));
    widest_value = std::max(widest_value, bytes_of(dtype));
  }
  const int64_t chunk = HybridSettings().chunk_elements;
  bytes.gradient_staging =
      optimizer.offload.overlap_d2h_h2d ? bytes.d2h : std::min(bytes.d2h, chunk * widest_gradient);
  bytes.value_staging = std::min(bytes.h2d, kChunksReturning * chunk * widest_value);
  return bytes;
}

}  // namespace ferry
