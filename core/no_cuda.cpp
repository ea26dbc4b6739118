// Stands in for device_cuda.cpp where Ferry is built without CUDA.

#include "core/check.h"
#include "core/device.h"
#include "core/graph.h"

namespace ferry {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail(ExitCode::Resource,
       "this build of ferry has no CUDA: use run.backend=cpu, or build where nvcc is installed "
       "(cmake --preset cuda-release)");
}

}  // namespace

std::unique_ptr<Device> make_cuda_device(int) { fail_without_cuda(); }

std::string cuda_bus_id(int) { fail_without_cuda(); }

std::unique_ptr<Graph> capture_cuda(Stream&, const std::function<void()>&, Unreleased) {
  fail_without_cuda();
}

int num_cuda_devices() { return 0; }

std::vector<std::pair<std::string, std::string>> cuda_library_versions() { return {}; }

}  // namespace ferry
