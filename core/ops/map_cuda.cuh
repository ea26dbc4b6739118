#pragma once

// Elementwise kernels: one thread per 16-byte vector, and one per element of what is left over.

#include "core/check_cuda.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

namespace ferry::cuda {

template <int kWidth, class Body>
__global__ void __launch_bounds__(256)
    map_kernel(int64_t num_vectors, int64_t num_items, const Body body) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item < num_vectors) {
    body.template apply<kWidth>(item * kWidth);
  } else if (item < num_items) {
    body.template apply<1>(num_vectors * kWidth + (item - num_vectors));
  }
}

/// Calls body.apply<N>(i) for elements [i, i+N), N = kWidth or 1, covering [0, num_elements) once.
/// `aligned` says that kWidth elements at a multiple of kWidth may be accessed as a vector.
template <int kWidth, class Body>
void launch_map(Stream& stream, int64_t num_elements, bool aligned, const Body& body) {
  if (num_elements == 0) return;
  const int64_t num_vectors = aligned ? num_elements / kWidth : 0;
  const int64_t num_items = num_elements - num_vectors * (kWidth - 1);
  map_kernel<kWidth><<<grid_size(ceil_div(num_items, 256)), 256, 0, cuda_handle(stream)>>>(
      num_vectors, num_items, body);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ferry::cuda
