#include "optim/shards.h"

#include <gtest/gtest.h>

#include "core/comm/thread_group.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

Parameter shaped(const Shape& shape) {
  Parameter parameter;
  parameter.shape = shape;
  return parameter;
}

std::string ranges(const Parameter& parameter, int size) {
  std::string text;
  for (int rank = 0; rank < size; ++rank) {
    const RowRange range = owned_rows(parameter, rank, size);
    text += concat(rank ? " " : "", range.begin, "-", range.end);
  }
  return text;
}

TEST(OwnedRows, AreCutEvenlyAndTheLastRanksMayHaveNone) {
  EXPECT_EQ(ranges(shaped({8, 3}), 1), "0-8");
  EXPECT_EQ(ranges(shaped({8, 3}), 4), "0-2 2-4 4-6 6-8");
  EXPECT_EQ(ranges(shaped({7, 3}), 3), "0-3 3-6 6-7");
  EXPECT_EQ(ranges(shaped({5, 3}), 4), "0-2 2-4 4-5 5-5");
  EXPECT_EQ(ranges(shaped({2, 3}), 4), "0-1 1-2 2-2 2-2");
  EXPECT_EQ(ranges(shaped({6, 3}), 5), "0-2 2-4 4-6 6-6 6-6");
  EXPECT_EQ(ranges(shaped({5}), 2), "0-3 3-5");        // one dim
  EXPECT_EQ(ranges(shaped({2, 3, 4}), 2), "0-3 3-6");  // experts
  EXPECT_THROW(owned_rows(shaped({8, 3}), 4, 4), Error);
}

class ShardsTest : public CpuTest {
 protected:
  Parameter parameter(const Shape& shape, DType dtype = DType::F32) {
    Parameter result = shaped(shape);
    result.dtype = dtype;
    result.value = random_tensor(stream(), shape, dtype, 1);
    result.grad = random_tensor(stream(), shape, accumulate_dtype(dtype), 2);
    return result;
  }
  // The shard of rank `rank` of `size`, on whatever axis.
  std::unique_ptr<Parameter> shard(Parameter& whole, int rank, int size) {
    ThreadWorld world(size);
    const std::unique_ptr<Group> group = world.group(rank);
    return std::move(
        make_shards({&whole}, {group.get(), group.get(), group.get(), group.get()})[0]);
  }
};

TEST_F(ShardsTest, AreViewsOfTheOwnedRows) {
  for (const Shape& shape : {Shape{7, 3}, Shape{7}, Shape{2, 4, 3}}) {
    Parameter whole = parameter(shape, DType::BF16);
    const auto value = read_back_as_double(stream(), whole.value);
    const auto grad = read_back_as_double(stream(), whole.grad);
    std::vector<double> values, grads;
    for (int rank = 0; rank < 4; ++rank) {
      const auto part = shard(whole, rank, 4);
      EXPECT_EQ(part->value.storage(), whole.value.storage());
      EXPECT_EQ(part->grad.storage(), whole.grad.storage());
      EXPECT_EQ(part->value.shape(), part->shape);
      EXPECT_EQ(part->grad.shape(), part->shape);
      EXPECT_EQ(part->shape.rank(), shape.rank() == 1 ? 1 : 2);
      EXPECT_EQ(part->shape[0], rank < 3 ? 2 : matrix_rows(shape) - 6);
      for (const double v : read_back_as_double(stream(), part->value)) values.push_back(v);
      for (const double g : read_back_as_double(stream(), part->grad)) grads.push_back(g);
    }
    EXPECT_EQ(values, value);
    EXPECT_EQ(grads, grad);
  }
}

TEST_F(ShardsTest, OfOneRankAreEverything) {
  Parameter whole = parameter({2, 4, 3});
  const auto part = shard(whole, 0, 1);
  EXPECT_TRUE(part->value.same_memory(whole.value));
  EXPECT_TRUE(part->grad.same_memory(whole.grad));
  EXPECT_EQ(part->shape, (Shape{8, 3}));
  EXPECT_EQ(part->placement().boxes(), whole.placement().boxes());
}

TEST_F(ShardsTest, KeepTheProperties) {
  Parameter whole = parameter({4, 3}, DType::BF16);
  whole.name = "norm";
  whole.decay = false;
  whole.is_copy = true;
  whole.axis = ReduceAxis::Expert;
  const auto part = shard(whole, 1, 2);
  EXPECT_EQ(part->name, "norm");
  EXPECT_EQ(part->dtype, DType::BF16);
  EXPECT_FALSE(part->decay);
  EXPECT_TRUE(part->is_copy);
  EXPECT_EQ(part->axis, ReduceAxis::Expert);
}

TEST_F(ShardsTest, KnowTheirPlaceInTheWhole) {
  // Rank 1 of two of gate and up, 6 rows each, then three ranks that own two of its six rows each.
  Parameter cut = shaped({12, 3});
  const int64_t sections[] = {6, 6};
  cut_rows(cut, sections, 1, 2);
  Parameter whole = parameter(cut.shape);
  whole.part = cut.part;
  const auto part = shard(whole, 1, 3);
  EXPECT_EQ(part->global_shape(), (Shape{12, 3}));
  EXPECT_EQ(part->placement().runs(), (std::vector<PlacedRows>{{0, 5, 1}, {1, 9, 1}}));
  EXPECT_EQ(part->placement().num_columns(), 3);
  // Rows of an expert of a tensor of three dims.
  Parameter experts = parameter({2, 3, 4});
  EXPECT_EQ(shard(experts, 1, 2)->placement().boxes(),
            (std::vector<PlacedBox>{{0, {1, 0, 0}, {1, 3, 4}}}));
}

TEST_F(ShardsTest, MayBeEmpty) {
  for (const Shape& shape : {Shape{2, 3}, Shape{2}}) {
    Parameter whole = parameter(shape);
    const auto part = shard(whole, 3, 4);
    EXPECT_EQ(part->shape, shape.rank() == 1 ? Shape{0} : (Shape{0, 3}));
    EXPECT_EQ(part->value.numel(), 0);
    EXPECT_EQ(part->grad.numel(), 0);
    EXPECT_EQ(part->global_shape(), shape);
    EXPECT_TRUE(part->placement().boxes().empty());
  }
}

TEST_F(ShardsTest, FollowTheGroupOfTheAxis) {
  ThreadWorld two(2), three(3);
  const std::unique_ptr<Group> solo = make_solo_group(), last = two.group(1), mid = three.group(1);
  const ReduceGroups groups{solo.get(), last.get(), mid.get(), last.get()};
  std::vector<Parameter> whole;
  for (const ReduceAxis axis : kReduceAxes) {
    whole.push_back(parameter({6, 2}));
    whole.back().axis = axis;
  }
  const auto shards = make_shards({&whole[0], &whole[1], &whole[2], &whole[3]}, groups);
  std::string text;
  for (const Parameter* part : pointers(shards))
    text += concat(part->placement().runs()[0].global_row, "+", part->shape[0], " ");
  EXPECT_EQ(text, "0+6 3+3 2+2 3+3 ");
}

TEST(ReduceGroups, AreFoundByAxis) {
  const auto dense = make_solo_group(), stage = make_solo_group(), tied = make_solo_group(),
             expert = make_solo_group();
  const ReduceGroups groups{dense.get(), stage.get(), tied.get(), expert.get()};
  EXPECT_EQ(&groups.of(ReduceAxis::Dense), dense.get());
  EXPECT_EQ(&groups.of(ReduceAxis::Stage), stage.get());
  EXPECT_EQ(&groups.of(ReduceAxis::Tied), tied.get());
  EXPECT_EQ(&groups.of(ReduceAxis::Expert), expert.get());
  EXPECT_THROW(ReduceGroups{.dense = dense.get()}.of(ReduceAxis::Expert), Error);
}

}  // namespace
}  // namespace ferry::testing
