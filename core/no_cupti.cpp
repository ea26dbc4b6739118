// Stands in for cupti_device_trace.cpp where Ferry is built without CUPTI.

#include "core/check.h"
#include "core/device_trace.h"

namespace ferry {

std::unique_ptr<DeviceTrace> start_device_trace() {
  fail(ExitCode::Resource,
       "error: this build of ferry cannot watch a GPU\n"
       "  why : CUDA's profiling interface (cupti.h, libcupti) was not found when it was built\n"
       "  try : install it with the CUDA toolkit, and build again");
}

}  // namespace ferry
