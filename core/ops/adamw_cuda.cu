#include "core/ops/adamw_kernels.h"
#include "core/ops/map_cuda.cuh"

namespace ferry::cuda {
namespace {

// Reads grad and reads and writes master and both moments once, writes value once. The intrinsics
// round each operation on its own: the compiler may not make fused multiply-adds of them.
template <class T, class M, class V>
struct Adamw {
  T* value;
  float* master;
  M* exp_avg;
  V* exp_avg_sq;
  const float* grad;
  AdamwScalars<float> c;

  template <int N>
  __device__ void apply(int64_t i) const {
    float g[N], m[N], v[N], w[N];
    load<N>(grad + i, g);
    load<N>(exp_avg + i, m);
    load<N>(exp_avg_sq + i, v);
    load<N>(master + i, w);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float gradient = __fmul_rn(g[j], c.grad_scale);
      m[j] = __fadd_rn(m[j], __fmul_rn(c.one_minus_beta1, __fsub_rn(gradient, m[j])));
      v[j] = __fadd_rn(
          v[j], __fmul_rn(c.one_minus_beta2, __fsub_rn(__fmul_rn(gradient, gradient), v[j])));
      const float root = __fsqrt_rn(__fdiv_rn(v[j], c.correction2));
      const float update = __fdiv_rn(__fdiv_rn(m[j], c.correction1), __fadd_rn(root, c.eps));
      const float decayed = __fadd_rn(update, __fmul_rn(c.weight_decay, w[j]));
      w[j] = __fsub_rn(w[j], __fmul_rn(c.lr, decayed));
    }
    store<N>(exp_avg + i, m);
    store<N>(exp_avg_sq + i, v);
    store<N>(master + i, w);
    store<N>(value + i, w);
  }
};

}  // namespace

void adamw(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings) {
  dispatch_device_float("adamw", value.dtype(), [&]<class T>() {
    dispatch_device_float("adamw", exp_avg.dtype(), [&]<class M>() {
      dispatch_device_float("adamw", exp_avg_sq.dtype(), [&]<class V>() {
        const Adamw<T, M, V> body{device_data<T>(value),   master.data<float>(),
                                  device_data<M>(exp_avg), device_data<V>(exp_avg_sq),
                                  grad.data<float>(),      AdamwScalars<float>(settings)};
        const bool aligned =
            aligned16(body.value, body.master, body.exp_avg, body.exp_avg_sq, body.grad);
        launch_map<4>(stream, value.numel(), aligned, body);
      });
    });
  });
}

}  // namespace ferry::cuda
