#pragma once

// Gradients in contiguous buckets: one per block of the model and reduction axis, so that a block's
// gradients can be reduced with one collective as soon as they are final. FP32 (FP64 for float64).

#include <vector>

#include "core/parameter.h"
#include "core/tensor.h"

namespace ferry {

struct Bucket {
  int block = 0;  // index into parameters_by_block
  ReduceAxis axis = ReduceAxis::Dense;
  std::vector<Parameter*> parameters;
  // The parameters' gradients one after the other, each padded to a multiple of 64 elements, so
  // that it begins where kernels can read 16 bytes at once.
  Tensor gradients;
};

class GradientBuckets {
 public:
  /// Allocates the buckets and points every parameter's grad into them.
  GradientBuckets(Stream& stream, const std::vector<std::vector<Parameter*>>& blocks);

  /// Zeroes all gradients, before the first micro-batch of a step.
  void zero(Stream& stream);
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  std::vector<Bucket> buckets_;
};

}  // namespace ferry
