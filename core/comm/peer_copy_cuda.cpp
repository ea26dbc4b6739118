#include "core/comm/peer_copy.h"

#include <algorithm>
#include <vector>

#include "core/check_cuda.h"
#include "core/device_cuda.h"

namespace ferry {
namespace {

constexpr size_t kBytes = size_t{256} << 20;
constexpr int kCalls = 8, kSamples = 9;

// Not of a memory pool, whose memory other GPUs may not reach.
class Buffer {
 public:
  explicit Buffer(int ordinal) {
    CUDA_CHECK(cudaSetDevice(ordinal));
    CUDA_CHECK(cudaMalloc(&data_, kBytes));
  }
  ~Buffer() { CUDA_CHECK_NOTHROW(cudaFree(data_)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// The first GPU that GPU `ordinal` reaches; -1 if there is none.
int reachable_from(int ordinal) {
  for (int other = 0; other < num_cuda_devices(); ++other) {
    int can_access = 0;
    if (other != ordinal) CUDA_CHECK(cudaDeviceCanAccessPeer(&can_access, ordinal, other));
    if (can_access != 0) return other;
  }
  return -1;
}

}  // namespace

std::optional<double> measure_peer_copy(Device& device) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) return std::nullopt;
  const int other = reachable_from(cuda->ordinal());
  if (other < 0) return std::nullopt;
  const Buffer to(other), from(cuda->ordinal());  // the last one leaves `device` current
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(other, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled)
    static_cast<void>(cudaGetLastError());
  else
    CUDA_CHECK(enabled);

  const auto stream = device.make_stream("peer copy");
  const cudaStream_t handle = cuda_handle(*stream);
  CUDA_CHECK(cudaMemsetAsync(from.data(), 0x5a, kBytes, handle));
  const auto seconds = [&] {
    const auto start = stream->stamp();
    for (int i = 0; i < kCalls; ++i)
      CUDA_CHECK(
          cudaMemcpyPeerAsync(to.data(), other, from.data(), cuda->ordinal(), kBytes, handle));
    return stream->stamp()->seconds_since(*start) / kCalls;
  };
  seconds();  // warms up
  std::vector<double> times;
  for (int i = 0; i < kSamples; ++i) times.push_back(seconds());
  std::nth_element(times.begin(), times.begin() + kSamples / 2, times.end());
  if (enabled == cudaSuccess) CUDA_CHECK(cudaDeviceDisablePeerAccess(other));
  return static_cast<double>(kBytes) / times[kSamples / 2];
}

}  // namespace ferry
