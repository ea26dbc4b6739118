#pragma once

// Device vectors: N neighbouring elements as floats, moved with 16-byte accesses where N allows,
// and the dispatch from a DType to a device type. Kernels compute in float whatever they store.

#include <cuda_bf16.h>

#include <cstdint>

#include "core/check.h"
#include "core/tensor.h"

namespace ferry::cuda {

/// Elements in one 16-byte access.
template <class T>
inline constexpr int kVector = 16 / sizeof(T);

template <class T>
struct DeviceDType;
template <>
struct DeviceDType<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DeviceDType<__nv_bfloat16> {
  static constexpr DType value = DType::BF16;
};

/// The one message for dtypes that no kernel takes.
[[noreturn]] inline void refuse_dtype(const char* op, DType dtype) {
  fail(ExitCode::Usage, op, " on a GPU takes f32 or bf16, not ", name_of(dtype),
       ": choose model.precision=bf16 or fp32, or run.backend=cpu, which computes in f64 too");
}

/// For ops whose numbers are accumulate_dtype: refuses F64.
inline void require_f32(const char* op, DType dtype) {
  if (dtype != DType::F32) refuse_dtype(op, dtype);
}

/// Calls body.operator()<T>() with float or __nv_bfloat16.
template <class Body>
void dispatch_device_float(const char* op, DType dtype, Body&& body) {
  switch (dtype) {
    case DType::F32:
      return body.template operator()<float>();
    case DType::BF16:
      return body.template operator()<__nv_bfloat16>();
    default:
      break;
  }
  refuse_dtype(op, dtype);
}

/// The elements of a tensor as device type T; null for an undefined tensor.
template <class T>
T* device_data(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  CHECK(tensor.dtype() == DeviceDType<T>::value, "tensor is ", name_of(tensor.dtype()));
  return static_cast<T*>(tensor.raw());
}

/// True if every pointer may be used for 16-byte accesses; null counts as aligned.
template <class... Pointers>
bool aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

inline unsigned grid_size(int64_t blocks) {
  CHECK(blocks >= 1 && blocks <= INT32_MAX, "a grid of ", blocks, " blocks");
  return static_cast<unsigned>(blocks);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

/// Rounds to nearest, ties to even.
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <int N>
__device__ inline void load(const float* from, float (&x)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const float4 part = reinterpret_cast<const float4*>(from)[i];
      x[4 * i] = part.x;
      x[4 * i + 1] = part.y;
      x[4 * i + 2] = part.z;
      x[4 * i + 3] = part.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = from[i];
  }
}

template <int N>
__device__ inline void store(float* to, const float (&x)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      reinterpret_cast<float4*>(to)[i] =
          make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = x[i];
  }
}

/// Two bf16 in one word; the lower half is the first.
__device__ inline void unpack(uint32_t word, float& first, float& second) {
  first = __uint_as_float(word << 16);
  second = __uint_as_float(word & 0xffff0000u);
}
__device__ inline void unpack(uint32_t word, float (&x)[2]) { unpack(word, x[0], x[1]); }
__device__ inline uint32_t pack(float first, float second) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(first))) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(second))) << 16;
}

template <int N>
__device__ inline void load(const __nv_bfloat16* from, float (&x)[N]) {
  if constexpr (N % 8 == 0) {
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      const uint4 part = reinterpret_cast<const uint4*>(from)[i];
      unpack(part.x, x[8 * i], x[8 * i + 1]);
      unpack(part.y, x[8 * i + 2], x[8 * i + 3]);
      unpack(part.z, x[8 * i + 4], x[8 * i + 5]);
      unpack(part.w, x[8 * i + 6], x[8 * i + 7]);
    }
  } else if constexpr (N == 4) {
    const uint2 part = *reinterpret_cast<const uint2*>(from);
    unpack(part.x, x[0], x[1]);
    unpack(part.y, x[2], x[3]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = __bfloat162float(from[i]);
  }
}

template <int N>
__device__ inline void store(__nv_bfloat16* to, const float (&x)[N]) {
  if constexpr (N % 8 == 0) {
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      reinterpret_cast<uint4*>(to)[i] =
          make_uint4(pack(x[8 * i], x[8 * i + 1]), pack(x[8 * i + 2], x[8 * i + 3]),
                     pack(x[8 * i + 4], x[8 * i + 5]), pack(x[8 * i + 6], x[8 * i + 7]));
    }
  } else if constexpr (N == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack(x[0], x[1]), pack(x[2], x[3]));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = __float2bfloat16_rn(x[i]);
  }
}

}  // namespace ferry::cuda
