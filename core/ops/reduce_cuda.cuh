#pragma once

// Sums and maxima over lanes, warps and blocks, in an order that depends on the shape alone, so
// that results are the same on every run.

#include <cstdint>

namespace ferry::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Over groups of kLanes neighbouring lanes; every lane gets the result. All 32 lanes must call.
template <int kLanes = 32, class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

/// Inclusive prefix sum over the lanes. All 32 lanes must call.
__device__ inline int warp_prefix_sum(int x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(kAllLanes, x, distance);
    if (lane >= distance) x += below;
  }
  return x;
}

/// Every thread gets the sum. All threads of a one-dimensional block of whole warps must call.
template <class T>
__device__ inline T block_sum(T x) {
  __shared__ T of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  x = warp_sum(x);
  if (num_warps == 1) return x;
  __syncthreads();  // the previous call's values may still be read
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  return warp_sum(lane < num_warps ? of_warp[lane] : T{0});
}

/// As block_sum; NaNs are ignored.
__device__ inline float block_max(float x) {
  __shared__ float of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  x = warp_max(x);
  if (num_warps == 1) return x;
  __syncthreads();  // the previous call's values may still be read
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  return warp_max(of_warp[lane < num_warps ? lane : 0]);
}

}  // namespace ferry::cuda
