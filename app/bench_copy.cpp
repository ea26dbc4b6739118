#include "app/bench.h"

#include <fmt/format.h>

#include "core/host_copy.h"
#include "core/ops/elementwise.h"

namespace ferry {

std::vector<BenchRow> bench_copy(Stream& stream) {
  const double ceiling = measure_copy_ceiling(stream);
  const bool on_gpu = !stream.device().is_cpu();
  std::vector<BenchRow> rows;
  for (const int64_t mib : {1, 16, 256}) {
    const Shape shape{mib << 18};  // F32
    const Tensor device = Tensor::empty(stream, "bench", shape, DType::F32);
    const Tensor other = Tensor::empty(stream, "bench", shape, DType::F32);
    const Tensor host = Tensor::host(stream.device(), "bench", shape, DType::F32);
    fill_normal(stream, device, 1.0, {1, 0, 1}, 0);
    const auto add = [&](const char* name, const Tensor& to, const Tensor& from, double passes) {
      BenchRow row{"copy", name, fmt::format("{} MiB", mib)};
      row.times = time_calls(stream, [&] { stream.copy(to, from); });
      row.bytes = passes * static_cast<double>(from.bytes());
      row.ceiling = ceiling;
      rows.push_back(row);
    };
    add(on_gpu ? "device to device" : "host to host", other, device, 2);
    if (!on_gpu) continue;
    add("device to pinned host", host, device, 1);
    add("pinned host to device", device, host, 1);
  }
  // Transfers are measured against the largest one of their direction.
  for (BenchRow& row : rows)
    for (const BenchRow& largest : rows)
      if (on_gpu && row.name == largest.name && row.name != "device to device")
        row.ceiling = largest.rate();
  return rows;
}

}  // namespace ferry
