#include <gtest/gtest.h>

#include "moe/dispatcher.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

// 3 tokens, 2 choices of 3 experts: tokens to experts {2, 0}, {0, 2}, {2, 1}.
class LocalDispatcherTest : public CpuTest {
 protected:
  LocalDispatcherTest() {
    batch_.batch = 1;
    batch_.seq = 3;
    plan_ = {ints({0, 0, 0}), ints({0, 0, 0, 0}), ints({0, 0, 0, 0, 0, 0}),
             ints({0, 0, 0, 0, 0, 0})};
    make_routing_plan(stream(), plan_, ints({2, 0, 0, 2, 2, 1}).reshape({3, 2}));
  }
  Tensor ints(const std::vector<int32_t>& values) {
    return from_host(stream(), "ints", values, {static_cast<int64_t>(values.size())});
  }
  Tensor doubles(const std::vector<double>& values, const Shape& shape) {
    return from_host(stream(), "doubles", values, shape);
  }
  std::vector<double> values(const Tensor& tensor) { return read_back_as_double(stream(), tensor); }

  Batch batch_;
  RoutingPlan plan_;
  Tape tape_;
  StepTotals totals_;
  Pass pass_{stream(), tape_, batch_, totals_, {}, true};
  LocalDispatcher dispatcher_;
};

TEST_F(LocalDispatcherTest, OrdersRowsByExpertThenToken) {
  const Tensor x = doubles({1, 2, 3}, {3, 1});
  const Tensor probs = doubles({.1, .2, .3, .4, .5, .6}, {3, 2});
  const Dispatched sent = dispatcher_.dispatch(pass_, x, {plan_, probs});
  EXPECT_EQ(values(sent.rows), (std::vector<double>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(values(sent.probs), (std::vector<double>{.2, .3, .6, .1, .4, .5}));
  EXPECT_EQ(values(sent.offsets), (std::vector<double>{0, 2, 3, 6}));
}

TEST_F(LocalDispatcherTest, CombinesTheRowsOfAToken) {
  const Tensor rows = doubles({1, 2, 4, 8, 16, 32}, {6, 1});
  EXPECT_EQ(values(dispatcher_.combine(pass_, rows, {}, plan_)), (std::vector<double>{9, 18, 36}));
  EXPECT_EQ(values(dispatcher_.combine(pass_, rows, doubles({.5, .25, .125}, {3, 1}), plan_)),
            (std::vector<double>{9.5, 18.25, 36.125}));
}

TEST_F(LocalDispatcherTest, BackwardIsTheOtherDirection) {
  const Tensor dy = doubles({1, 2, 3}, {3, 1});
  EXPECT_EQ(values(dispatcher_.combine_backward(pass_, dy, plan_)),
            (std::vector<double>{1, 2, 3, 1, 2, 3}));
  const Tensor drows = doubles({1, 2, 4, 8, 16, 32}, {6, 1});
  const Tensor dprobs = doubles({.2, .3, .6, .1, .4, .5}, {6});
  const auto gradients = dispatcher_.dispatch_backward(pass_, drows, dprobs, {}, plan_);
  EXPECT_EQ(values(gradients.x), (std::vector<double>{9, 18, 36}));
  EXPECT_EQ(gradients.probs.shape(), (Shape{3, 2}));
  EXPECT_EQ(values(gradients.probs), (std::vector<double>{.1, .2, .3, .4, .5, .6}));
  const auto added = dispatcher_.dispatch_backward(pass_, drows, dprobs, dy, plan_);
  EXPECT_EQ(values(added.x), (std::vector<double>{10, 20, 39}));
}

}  // namespace
}  // namespace ferry::testing
