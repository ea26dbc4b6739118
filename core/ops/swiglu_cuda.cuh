#pragma once

// SwiGLU of one element on a GPU, the same bits wherever it is computed.

#include <type_traits>

namespace ferry::cuda {

/// For numbers stored as T. The division costs two units in the last place of FP32, which the
/// exponential has anyway; for BF16 the fast exponential does, whose relative error is |x| units. 0
/// for very negative x.
template <class T>
__device__ inline float sigmoid(float x) {
  const float power = std::is_same_v<T, float> ? expf(-x) : __expf(-x);
  return __fdividef(1.0f, 1.0f + power);
}

template <class T>
__device__ inline float swiglu(float gate, float up, float factor) {
  return gate * sigmoid<T>(gate) * up * factor;
}

struct SwigluGradients {
  float gate;
  float up;
  float prob;  // this element's part
};

/// dh: the gradient of silu(gate) * up * factor.
template <class T>
__device__ inline SwigluGradients swiglu_gradients(float dh, float gate, float up, float factor) {
  const float s = sigmoid<T>(gate);
  const float silu = gate * s;
  return {dh * factor * up * s * (1.0f + gate * (1.0f - s)), dh * factor * silu, dh * silu * up};
}

}  // namespace ferry::cuda
