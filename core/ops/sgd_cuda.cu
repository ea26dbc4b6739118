#include "core/ops/map_cuda.cuh"
#include "core/ops/sgd_kernels.h"

namespace ferry::cuda {
namespace {

// Reads grad and reads and writes master and momentum once, writes value once. Each operation is
// rounded on its own, as in adamw_cuda.cu.
template <class T, class M>
struct Sgd {
  T* value;
  float* master;
  M* buffer;
  const float* grad;
  SgdScalars<float> c;

  template <int N>
  __device__ void apply(int64_t i) const {
    float g[N], m[N], w[N];
    load<N>(grad + i, g);
    load<N>(buffer + i, m);
    load<N>(master + i, w);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float gradient =
          __fadd_rn(__fmul_rn(g[j], c.grad_scale), __fmul_rn(c.weight_decay, w[j]));
      m[j] = __fadd_rn(__fmul_rn(c.momentum, m[j]), gradient);
      w[j] = __fsub_rn(w[j], __fmul_rn(c.lr, m[j]));
    }
    store<N>(buffer + i, m);
    store<N>(master + i, w);
    store<N>(value + i, w);
  }
};

}  // namespace

void sgd(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& buffer,
         const Tensor& grad, const SgdSettings& settings) {
  dispatch_device_float("sgd", value.dtype(), [&]<class T>() {
    dispatch_device_float("sgd", buffer.dtype(), [&]<class M>() {
      const Sgd<T, M> body{device_data<T>(value), master.data<float>(), device_data<M>(buffer),
                           grad.data<float>(), SgdScalars<float>(settings)};
      const bool aligned = aligned16(body.value, body.master, body.buffer, body.grad);
      launch_map<4>(stream, value.numel(), aligned, body);
    });
  });
}

}  // namespace ferry::cuda
