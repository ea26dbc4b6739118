#include "moe/local_dispatcher.h"

#include <gmock/gmock.h>

#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

// 3 tokens, 2 choices of 3 experts: tokens to experts {2, 0}, {0, 2}, {2, 1}.
class LocalDispatcherTest : public CpuTest {
 protected:
  LocalDispatcherTest() {
    routing_.experts = from_host(stream(), "experts", std::vector{2, 0, 0, 2, 2, 1}, {3, 2});
    routing_.probs = doubles({.1, .2, .3, .4, .5, .6}, {3, 2});
    routing_.plan = RoutingPlan::empty(stream(), 3, 6);
    make_routing_plan(stream(), routing_.plan, routing_.experts);
    dispatcher_.prepare(pass_, routing_);
  }
  Tensor doubles(const std::vector<double>& values, const Shape& shape) {
    return from_host(stream(), "doubles", values, shape);
  }
  std::vector<double> values(const Tensor& tensor) { return read_back_as_double(stream(), tensor); }

  Batch batch_;
  Routing routing_;
  Tape tape_;
  StepTotals totals_;
  Pass pass_{stream(), tape_, batch_, totals_, {}, true};
  LocalDispatcher dispatcher_;
};

TEST_F(LocalDispatcherTest, OrdersRowsByExpertThenToken) {
  const Tensor x = doubles({1, 2, 3}, {3, 1});
  const Dispatched sent = dispatcher_.dispatch(pass_, x, routing_.probs);
  EXPECT_EQ(values(sent.rows.x), (std::vector<double>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(values(sent.probs), (std::vector<double>{.2, .3, .6, .1, .4, .5}));
  EXPECT_EQ(values(sent.offsets), (std::vector<double>{0, 2, 3, 6}));
}

TEST_F(LocalDispatcherTest, GatheredRowsAreTheTokensAndTheirOrder) {
  LocalDispatcher dispatcher(true);
  dispatcher.prepare(pass_, routing_);
  const Tensor x = doubles({1, 2, 3}, {3, 1});
  const Dispatched sent = dispatcher.dispatch(pass_, x, routing_.probs);
  EXPECT_TRUE(sent.rows.x.same_memory(x));
  EXPECT_EQ(values(sent.rows.slot_of_row), (std::vector<double>{1, 2, 5, 0, 3, 4}));
  EXPECT_EQ(values(sent.rows.contiguous(stream(), "rows")),
            (std::vector<double>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(values(sent.probs), (std::vector<double>{.2, .3, .6, .1, .4, .5}));
  EXPECT_EQ(values(sent.offsets), (std::vector<double>{0, 2, 3, 6}));
}

TEST_F(LocalDispatcherTest, NeedsAPlan) {
  Pass other(stream(), tape_, batch_, totals_, {}, true);
  EXPECT_THAT(
      [&] {
        dispatcher_.combine_backward(other, doubles({1, 2, 3}, {3, 1}));
      },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("no tokens were prepared")));
}

TEST_F(LocalDispatcherTest, CombinesTheRowsOfAToken) {
  const Tensor rows = doubles({1, 2, 4, 8, 16, 32}, {6, 1});
  EXPECT_EQ(values(dispatcher_.combine(pass_, rows, {})), (std::vector<double>{9, 18, 36}));
  EXPECT_EQ(values(dispatcher_.combine(pass_, rows, doubles({.5, .25, .125}, {3, 1}))),
            (std::vector<double>{9.5, 18.25, 36.125}));
}

TEST_F(LocalDispatcherTest, BackwardIsTheOtherDirection) {
  const Tensor dy = doubles({1, 2, 3}, {3, 1});
  EXPECT_EQ(values(dispatcher_.combine_backward(pass_, dy)),
            (std::vector<double>{1, 2, 3, 1, 2, 3}));
  const Tensor drows = doubles({1, 2, 4, 8, 16, 32}, {6, 1});
  const Tensor dprobs = doubles({.2, .3, .6, .1, .4, .5}, {6});
  const auto returning = dispatcher_.start_dispatch_backward(pass_, drows, dprobs);
  const Tensor by_choice = dispatcher_.probs_gradient(pass_, returning);
  EXPECT_EQ(by_choice.shape(), (Shape{3, 2}));
  EXPECT_EQ(values(by_choice), (std::vector<double>{.1, .2, .3, .4, .5, .6}));
  EXPECT_EQ(values(dispatcher_.x_gradient(pass_, returning, {})), (std::vector<double>{9, 18, 36}));
  EXPECT_EQ(values(dispatcher_.x_gradient(pass_, returning, dy)),
            (std::vector<double>{10, 20, 39}));
}

}  // namespace
}  // namespace ferry::testing
