#pragma once

// Gradients in contiguous buckets: one per block of the model and reduction axis, so that a block's
// gradients can be reduced as soon as they are final. FP32 (FP64 for float64).

#include <vector>

#include "core/parameter.h"
#include "core/tensor.h"
#include "optim/reduce_groups.h"

namespace ferry {

struct Bucket {
  int block = 0;  // index into parameters_by_block
  ReduceAxis axis = ReduceAxis::Dense;
  std::vector<Parameter*> parameters;
  // The parameters' gradients one after the other, each padded to a multiple of 64 elements, so
  // that it begins where kernels can read 16 bytes at once.
  Tensor gradients;
  // The gradient of each parameter, with rows of padding up to rows_per_rank() for every rank if
  // the buckets are for the distributed optimizer: [ranks * rows_per_rank, columns].
  std::vector<Tensor> padded;
};

class GradientBuckets {
 public:
  /// Allocates the buckets and points every parameter's grad into them. `blocks`: of all chunks of
  /// this rank. `distributed`: gradients will be scattered over their groups by rows.
  GradientBuckets(Stream& stream, const std::vector<std::vector<Parameter*>>& blocks,
                  const ReduceGroups& groups, bool distributed);

  /// Zeroes all gradients, before the first micro-batch of a step.
  void zero(Stream& stream);
  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool distributed() const { return distributed_; }

 private:
  std::vector<Bucket> buckets_;
  bool distributed_;
};

}  // namespace ferry
