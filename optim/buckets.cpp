#include "optim/buckets.h"

#include "optim/shards.h"

namespace ferry {
namespace {

// Elements.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

GradientBuckets::GradientBuckets(Stream& stream, const std::vector<std::vector<Parameter*>>& blocks,
                                 const ReduceGroups& groups, bool distributed)
    : distributed_(distributed) {
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (const ReduceAxis axis : kReduceAxes) {
      Bucket bucket{static_cast<int>(block), axis, {}, {}, {}};
      std::vector<Shape> padded;
      int64_t numel = 0;
      for (Parameter* parameter : blocks[block]) {
        if (parameter->axis != axis) continue;
        bucket.parameters.push_back(parameter);
        const int size = distributed ? groups.of(axis).size() : 1;
        padded.push_back(
            {size * rows_per_rank(*parameter, size), matrix_columns(parameter->shape)});
        numel += aligned(padded.back().numel());
      }
      if (bucket.parameters.empty()) continue;
      const DType dtype = accumulate_dtype(bucket.parameters[0]->dtype);
      bucket.gradients = Tensor::empty(stream, "gradients fp32", {numel}, dtype);
      int64_t begin = 0;
      for (size_t i = 0; i < padded.size(); ++i) {
        Parameter& parameter = *bucket.parameters[i];
        const auto first = [&](const Shape& shape) {
          return bucket.gradients.rows(begin, begin + shape.numel()).reshape(shape);
        };
        parameter.grad = first(parameter.shape);
        bucket.padded.push_back(first(padded[i]));
        begin += aligned(padded[i].numel());
      }
      buckets_.push_back(std::move(bucket));
    }
  }
}

void GradientBuckets::zero(Stream& stream) {
  for (const Bucket& bucket : buckets_) stream.zero(bucket.gradients);
}

}  // namespace ferry
