#pragma once

// Sixteen bytes as they lie in memory. A kernel that holds a row until its sums are known holds it
// packed: half the registers of floats for bf16, so twice as many bytes in flight.

#include <cstdint>

#include "core/ops/vector_cuda.cuh"

namespace ferry::cuda {

/// For data that no thread reads again in this kernel: the first to leave the caches. The memory
/// may be an output of the kernel as long as the thread that writes an element is the one that has
/// read it.
template <class T>
__device__ inline uint4 load_once(const T* from) {
  return __ldcs(reinterpret_cast<const uint4*>(from));
}

/// For data that the whole kernel only reads and that many threads share (weights).
template <class T>
__device__ inline uint4 load_shared_by_all(const T* from) {
  return __ldg(reinterpret_cast<const uint4*>(from));
}

template <class T>
__device__ inline void store_packed(T* to, uint4 packed) {
  *reinterpret_cast<uint4*>(to) = packed;
}

/// A single element, for rows that have no vectors.
template <class T>
__device__ inline void unpack(T packed, float (&x)[1]) {
  x[0] = to_float(packed);
}
__device__ inline void unpack(uint4 packed, float (&x)[kVector<float>]) {
  x[0] = __uint_as_float(packed.x);
  x[1] = __uint_as_float(packed.y);
  x[2] = __uint_as_float(packed.z);
  x[3] = __uint_as_float(packed.w);
}
__device__ inline void unpack(uint4 packed, float (&x)[kVector<__nv_bfloat16>]) {
  unpack(packed.x, x[0], x[1]);
  unpack(packed.y, x[2], x[3]);
  unpack(packed.z, x[4], x[5]);
  unpack(packed.w, x[6], x[7]);
}

/// Rounds to nearest, ties to even.
__device__ inline uint4 pack(const float (&x)[kVector<float>]) {
  return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                    __float_as_uint(x[3]));
}
__device__ inline uint4 pack(const float (&x)[kVector<__nv_bfloat16>]) {
  return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

}  // namespace ferry::cuda
