#pragma once

// What a GPU did while it was watched: every kernel with its time, and how long the GPU was busy.
// CUDA's profiling interface (CUPTI) reports them; watching delays the host by a few microseconds a
// kernel, so what is watched is not what is timed.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ferry {

/// One execution: a kernel, or a copy or fill within the memory of the GPU.
struct DeviceInterval {
  std::string name;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
};

struct DeviceActivity {
  struct Work {
    std::string name;
    int64_t calls = 0;
    double seconds = 0;  // of all calls
  };
  std::vector<Work> work;   // longest first
  double busy_seconds = 0;  // in which at least one interval was under way
};
/// Overlapping intervals are busy once.
DeviceActivity summarize(std::span<const DeviceInterval> intervals);

/// A kernel's symbol for people: without result, parameters and the namespaces of this program.
std::string kernel_name(const std::string& symbol);

class DeviceTrace {
 public:
  virtual ~DeviceTrace() = default;
  /// Ends the trace. Work still running is not in it: synchronize before.
  virtual DeviceActivity stop() = 0;
};
/// From now on, on all GPUs that this process uses; one trace at a time. Error(ExitCode::Resource)
/// if this build has no CUPTI, or the driver does not let it watch.
std::unique_ptr<DeviceTrace> start_device_trace();

}  // namespace ferry
