#include "core/ops/blas_cpu.h"
#include "core/ops/grouped_gemm_kernels.h"

namespace ferry::cpu {
namespace {

// Calls body(group, first row, number of rows) for the groups that have rows.
template <class Body>
void for_each_group(const Tensor& offsets, int64_t num_rows, Body&& body) {
  const int32_t* offset = offsets.data<int32_t>();
  const int64_t num_groups = offsets.dim(0) - 1;
  CHECK(offset[0] == 0 && offset[num_groups] <= num_rows, "groups own rows [", offset[0], ", ",
        offset[num_groups], ") of ", num_rows);
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t begin = offset[group], count = offset[group + 1] - begin;
    CHECK(count >= 0, "offsets of group ", group, " decrease");
    if (count > 0) body(group, begin, count);
  }
}

// out [rows, c] = in [rows, k] * op(weight[e]): the weight is transposed forward, not backward.
template <class T>
void multiply_rows(const Tensor& out, const Tensor& in, const Tensor& weight, Transpose transpose,
                   const Tensor& offsets) {
  using Compute = compute_t<T>;
  const int64_t inner = in.dim(1), columns = out.dim(1);
  const int64_t weight_size = weight.dim(1) * weight.dim(2);
  for_each_group(offsets, in.dim(0), [&](int64_t group, int64_t begin, int64_t count) {
    const Widened<T> rows(in.data<T>() + begin * inner, count * inner);
    const Widened<T> matrix(weight.data<T>() + group * weight_size, weight_size);
    Result<T> result(out.data<T>() + begin * columns, count * columns, false);
    blas_gemm(count, columns, inner, Compute{1}, Matrix<const Compute>{rows.data(), inner},
              Transpose::No, Matrix<const Compute>{matrix.data(), weight.dim(2)}, transpose,
              Compute{0}, Matrix<Compute>{result.data(), columns});
    result.store();
  });
}

}  // namespace

void grouped_gemm_forward(const Tensor& y, const Tensor& x, const Tensor& weight,
                          const Tensor& offsets) {
  dispatch_float(x.dtype(),
                 [&]<class T>() { multiply_rows<T>(y, x, weight, Transpose::Yes, offsets); });
}

void grouped_gemm_dgrad(const Tensor& dx, const Tensor& dy, const Tensor& weight,
                        const Tensor& offsets) {
  dispatch_float(dy.dtype(),
                 [&]<class T>() { multiply_rows<T>(dx, dy, weight, Transpose::No, offsets); });
}

void grouped_gemm_wgrad(const Tensor& dweight, const Tensor& dy, const Tensor& x,
                        const Tensor& offsets) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using Compute = compute_t<T>;
    const int64_t n = dy.dim(1), k = x.dim(1);
    for_each_group(offsets, x.dim(0), [&](int64_t group, int64_t begin, int64_t count) {
      const Widened<T> dy_rows(dy.data<T>() + begin * n, count * n);
      const Widened<T> x_rows(x.data<T>() + begin * k, count * k);
      blas_gemm(n, k, count, Compute{1}, Matrix<const Compute>{dy_rows.data(), n}, Transpose::Yes,
                Matrix<const Compute>{x_rows.data(), k}, Transpose::No, Compute{1},
                Matrix<Compute>{dweight.data<Compute>() + group * n * k, k});
    });
  });
}

}  // namespace ferry::cpu
