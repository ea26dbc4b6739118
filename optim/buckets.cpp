#include "optim/buckets.h"

namespace ferry {
namespace {

// Elements.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

GradientBuckets::GradientBuckets(Stream& stream,
                                 const std::vector<std::vector<Parameter*>>& blocks) {
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (const ReduceAxis axis : {ReduceAxis::Dense, ReduceAxis::Expert}) {
      Bucket bucket{static_cast<int>(block), axis, {}, {}};
      int64_t numel = 0;
      for (Parameter* parameter : blocks[block]) {
        if (parameter->axis != axis) continue;
        bucket.parameters.push_back(parameter);
        numel += aligned(parameter->shape.numel());
      }
      if (bucket.parameters.empty()) continue;
      const DType dtype = accumulate_dtype(bucket.parameters[0]->dtype);
      bucket.gradients = Tensor::empty(stream, "gradients fp32", {numel}, dtype);
      int64_t begin = 0;
      for (Parameter* parameter : bucket.parameters) {
        const int64_t end = begin + parameter->shape.numel();
        parameter->grad = bucket.gradients.rows(begin, end).reshape(parameter->shape);
        begin += aligned(parameter->shape.numel());
      }
      buckets_.push_back(std::move(bucket));
    }
  }
}

void GradientBuckets::zero(Stream& stream) {
  for (const Bucket& bucket : buckets_) stream.zero(bucket.gradients);
}

}  // namespace ferry
