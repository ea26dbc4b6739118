#include "optim/buckets.h"

#include <gtest/gtest.h>

#include "core/comm/thread_group.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

Parameter parameter(const std::string& name, const Shape& shape, DType dtype,
                    ReduceAxis axis = ReduceAxis::Dense) {
  Parameter result;
  result.name = name;
  result.shape = shape;
  result.dtype = dtype;
  result.axis = axis;
  return result;
}

class BucketsTest : public CpuTest {
 protected:
  Parameter embedding = parameter("embedding", {7, 3}, DType::BF16);
  Parameter router = parameter("router", {5}, DType::F32);
  Parameter experts = parameter("experts", {2, 4, 8}, DType::BF16, ReduceAxis::Expert);
  Parameter norm = parameter("norm", {3}, DType::BF16);
  Parameter more_experts = parameter("more experts", {2, 33}, DType::BF16, ReduceAxis::Expert);
  std::unique_ptr<Group> solo = make_solo_group();
  ReduceGroups solo_groups{solo.get(), solo.get(), solo.get(), solo.get()};
  // The third block has no parameters, the fourth has no dense ones.
  std::vector<std::vector<Parameter*>> blocks = {
      {&embedding}, {&router, &experts, &norm}, {}, {&more_experts}};
};

TEST_F(BucketsTest, OnePerBlockAndAxis) {
  GradientBuckets buckets(stream(), blocks, solo_groups, false);
  std::vector<std::string> described;
  for (const Bucket& bucket : buckets.buckets()) {
    std::string text =
        concat(bucket.block, bucket.axis == ReduceAxis::Expert ? " expert" : " dense");
    for (const Parameter* p : bucket.parameters) text += concat(" ", p->name);
    described.push_back(text);
    EXPECT_EQ(bucket.gradients.dtype(), DType::F32);
  }
  EXPECT_EQ(described, (std::vector<std::string>{"0 dense embedding", "1 dense router norm",
                                                 "1 expert experts", "3 expert more experts"}));
}

TEST_F(BucketsTest, EveryAxisHasItsBucket) {
  std::vector<Parameter> all;
  for (const ReduceAxis axis :
       {ReduceAxis::Expert, ReduceAxis::Tied, ReduceAxis::Stage, ReduceAxis::Dense})
    all.push_back(parameter("", {3}, DType::F32, axis));
  GradientBuckets buckets(stream(), {{&all[0], &all[1], &all[2], &all[3]}}, solo_groups, false);
  std::vector<const Parameter*> order;
  for (const Bucket& bucket : buckets.buckets()) {
    ASSERT_EQ(bucket.parameters.size(), 1u);
    EXPECT_EQ(bucket.parameters[0]->axis, bucket.axis);
    order.push_back(bucket.parameters[0]);
  }
  EXPECT_EQ(order, (std::vector<const Parameter*>{&all[3], &all[2], &all[1], &all[0]}));
}

// Room for rows of padding up to a multiple of the ranks of each axis.
TEST_F(BucketsTest, DistributedGradientsHavePaddingForAllRanks) {
  ThreadWorld three(3), two(2);
  const std::unique_ptr<Group> dense = three.group(0), expert = two.group(1);
  const ReduceGroups groups{dense.get(), dense.get(), dense.get(), expert.get()};
  for (const bool distributed : {false, true}) {
    GradientBuckets buckets(stream(), blocks, groups, distributed);
    EXPECT_EQ(buckets.distributed(), distributed);
    std::string text;
    for (const Bucket& bucket : buckets.buckets()) {
      ASSERT_EQ(bucket.padded.size(), bucket.parameters.size());
      int64_t end = 0;
      for (size_t i = 0; i < bucket.padded.size(); ++i) {
        const Tensor& padded = bucket.padded[i];
        const Parameter& p = *bucket.parameters[i];
        text += concat(padded.shape(), " ");
        EXPECT_EQ(padded.raw(), p.grad.raw());
        EXPECT_EQ(p.grad.shape(), p.shape);
        EXPECT_GE(p.grad.byte_offset(), end);
        end = padded.byte_offset() + padded.bytes();
      }
      EXPECT_LE(end, bucket.gradients.bytes());
    }
    EXPECT_EQ(text, distributed ? "[9, 3] [6, 1] [3, 1] [8, 8] [2, 33] "
                                : "[7, 3] [5, 1] [3, 1] [8, 8] [2, 33] ");
  }
}

TEST_F(BucketsTest, GradientsAreAlignedPiecesOfTheirBucket) {
  GradientBuckets buckets(stream(), blocks, solo_groups, false);
  for (const Bucket& bucket : buckets.buckets()) {
    int64_t end = 0;
    for (const Parameter* p : bucket.parameters) {
      EXPECT_EQ(p->grad.shape(), p->shape) << p->name;
      EXPECT_EQ(p->grad.dtype(), DType::F32) << p->name;
      EXPECT_EQ(p->grad.storage(), bucket.gradients.storage()) << p->name;
      EXPECT_GE(p->grad.byte_offset(), end) << p->name << " overlaps";
      EXPECT_LT(p->grad.byte_offset() - end, 256) << p->name << " leaves a hole";
      EXPECT_EQ(p->grad.byte_offset() % 256, 0) << p->name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p->grad.raw()) % 16, 0u) << p->name;
      end = p->grad.byte_offset() + p->grad.bytes();
    }
    EXPECT_LE(end, bucket.gradients.bytes());
  }
  EXPECT_EQ(buckets.buckets()[1].gradients.shape(), (Shape{64 + 64}));
  EXPECT_EQ(buckets.buckets()[3].gradients.shape(), (Shape{128}));
}

TEST_F(BucketsTest, ZeroReachesEveryElementAndThePadding) {
  device().set_poison_memory(true);
  GradientBuckets buckets(stream(), blocks, solo_groups, false);
  buckets.zero(stream());
  for (const Bucket& bucket : buckets.buckets())
    EXPECT_EQ(read_back_as_double(stream(), bucket.gradients),
              std::vector<double>(static_cast<size_t>(bucket.gradients.numel())));
}

TEST_F(BucketsTest, Float64StaysFloat64) {
  Parameter weight = parameter("weight", {3}, DType::F64);
  GradientBuckets buckets(stream(), {{&weight}}, solo_groups, false);
  EXPECT_EQ(weight.grad.dtype(), DType::F64);
  EXPECT_EQ(buckets.buckets()[0].gradients.dtype(), DType::F64);
}

}  // namespace
}  // namespace ferry::testing
