#include "core/small_copy_cuda.h"

#include "core/check_cuda.h"

namespace ferry {
namespace {

__global__ void __launch_bounds__(256)
    copy_bytes_kernel(unsigned char* to, const unsigned char* from, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

__global__ void __launch_bounds__(256)
    copy_words_kernel(uint32_t* to, const uint32_t* from, int64_t words) {
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(uint32_t) == 0;
}

}  // namespace

void copy_small_to_host(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  void* mapped = nullptr;
  CUDA_CHECK(cudaHostGetDevicePointer(&mapped, to, 0));
  if (aligned(mapped) && aligned(from) && bytes % static_cast<int64_t>(sizeof(uint32_t)) == 0) {
    copy_words_kernel<<<1, 256, 0, stream>>>(static_cast<uint32_t*>(mapped),
                                             static_cast<const uint32_t*>(from),
                                             bytes / static_cast<int64_t>(sizeof(uint32_t)));
  } else {
    copy_bytes_kernel<<<1, 256, 0, stream>>>(static_cast<unsigned char*>(mapped),
                                             static_cast<const unsigned char*>(from), bytes);
  }
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ferry
