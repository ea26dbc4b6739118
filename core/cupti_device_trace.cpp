#include <cupti.h>

#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/device_trace.h"

namespace ferry {
namespace {

void check(CUptiResult result, std::string_view what) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  static_cast<void>(cuptiGetResultString(result, &text));
  fail(
      ExitCode::Resource, "error: the GPU cannot be watched: ", what, ": ",
      text != nullptr ? text : "unknown error",
      "\n  why : another profiler may be attached, or the driver allows it to administrators only\n"
      "  try : without --kernels");
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

// CUPTI's functions take no data of the caller's, so there is one of these.
struct Records {
  std::mutex mutex;
  std::vector<DeviceInterval> intervals;
  bool damaged = false;
};
Records& records() {
  static Records instance;
  return instance;
}

// Of later versions of CUPTI's records the first members are those of earlier ones.
void add_record(std::vector<DeviceInterval>& intervals, const CUpti_Activity& record) {
  if (record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel9&>(record);
    intervals.push_back({kernel.name, kernel.start, kernel.end});
  } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
    intervals.push_back({"fill", fill.start, fill.end});
  } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy5&>(record);
    // Copies from and to the host run beside the multiprocessors, which may be idle meanwhile.
    if (copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOD)
      intervals.push_back({"copy within the device", copy.start, copy.end});
  }
}

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kAlignment = 8;  // what CUPTI asks for

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}

// On a thread of CUPTI's: errors are told to whoever stops the trace.
void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t /*bytes*/,
                          size_t valid_bytes) {
  Records& all = records();
  const std::lock_guard lock(all.mutex);
  CUpti_Activity* record = nullptr;
  CUptiResult result;
  while ((result = cuptiActivityGetNextRecord(buffer, valid_bytes, &record)) == CUPTI_SUCCESS)
    add_record(all.intervals, *record);
  size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) != CUPTI_SUCCESS ||
      dropped > 0 || result != CUPTI_ERROR_MAX_LIMIT_REACHED)
    all.damaged = true;
  std::free(buffer);
}

class CuptiTrace final : public DeviceTrace {
 public:
  CuptiTrace() {
    check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "register callbacks");
    for (const CUpti_ActivityKind kind : kKinds) check(cuptiActivityEnable(kind), "enable records");
  }
  ~CuptiTrace() override {
    for (const CUpti_ActivityKind kind : kKinds) static_cast<void>(cuptiActivityDisable(kind));
  }

  DeviceActivity stop() override {
    check(cuptiActivityFlushAll(0), "flush records");
    for (const CUpti_ActivityKind kind : kKinds)
      check(cuptiActivityDisable(kind), "disable records");
    Records& all = records();
    const std::lock_guard lock(all.mutex);
    if (std::exchange(all.damaged, false))
      fail(ExitCode::Resource, "error: records of the GPU's work were lost\n",
           "  why : the host had too little memory for them\n  try : fewer steps");
    std::vector<DeviceInterval> intervals = std::exchange(all.intervals, {});
    for (DeviceInterval& interval : intervals) interval.name = kernel_name(interval.name);
    return summarize(intervals);
  }
};

}  // namespace

std::unique_ptr<DeviceTrace> start_device_trace() { return std::make_unique<CuptiTrace>(); }

}  // namespace ferry
