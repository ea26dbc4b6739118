#include "core/ops/row_capacity.h"

#include <gmock/gmock.h>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Six tokens choose one of three experts: rows of experts 0, 1, 2 are [0, 2), [2, 5), [5, 6).
class RowCapacityOp : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    plan_ = RoutingPlan::empty(stream(), 3, 6);
    make_routing_plan(stream(), plan_, ints({1, 0, 1, 2, 0, 1}, {6, 1}));
    num_over_ = ints({0}, {1});
  }
  std::vector<int32_t> host(const Tensor& tensor) { return read_back<int32_t>(stream(), tensor); }
  Tensor limit(int64_t num_experts, int64_t capacity) {
    const Tensor offsets = poisoned(stream(), {num_experts + 1}, DType::I32);
    limit_rows(stream(), offsets, num_over_, plan_, capacity);
    return offsets;
  }
  // What combine_rows makes of rows 1, 2, ... for the tokens.
  std::vector<double> combined(int64_t num_rows) {
    std::vector<double> values;
    for (int64_t row = 0; row < num_rows; ++row) values.push_back(static_cast<double>(row) + 1);
    const Tensor y = output({6, 1});
    combine_rows(stream(), y, tensor_of(stream(), values, {num_rows, 1}, dtype()), {}, plan_);
    return read_back_as_double(stream(), y);
  }

  RoutingPlan plan_;
  Tensor num_over_;
};

TEST_P(RowCapacityOp, NothingIsCutOffBelowTheCapacity) {
  for (const int64_t capacity : {6, 7, 1000}) {
    EXPECT_THAT(host(limit(3, capacity)), ElementsAre(0, 2, 5, 6));
    EXPECT_THAT(host(plan_.row_of_slot), ElementsAre(2, 0, 3, 5, 1, 4));
  }
  EXPECT_THAT(host(num_over_), ElementsAre(0));
}

TEST_P(RowCapacityOp, RowsBeyondTheCapacityAreLeftOut) {
  EXPECT_THAT(host(limit(3, 4)), ElementsAre(0, 2, 4, 4));
  EXPECT_THAT(host(num_over_), ElementsAre(1));
  EXPECT_THAT(combined(6), ElementsAre(3, 1, 4, 0, 2, 0));
  EXPECT_THAT(host(plan_.offsets), ElementsAre(0, 2, 5, 6));  // as before
}

TEST_P(RowCapacityOp, RowsOfTheLastExpertsAreNoRows) {
  EXPECT_THAT(host(limit(2, 6)), ElementsAre(0, 2, 5));
  EXPECT_THAT(host(num_over_), ElementsAre(0));
  EXPECT_THAT(combined(6), ElementsAre(3, 1, 4, 0, 2, 5));
}

TEST_P(RowCapacityOp, OnlyTheFirstExpertsCountAgainstTheCapacity) {
  EXPECT_THAT(host(limit(1, 2)), ElementsAre(0, 2));
  EXPECT_THAT(host(num_over_), ElementsAre(0));
  EXPECT_THAT(host(limit(1, 1)), ElementsAre(0, 1));
  EXPECT_THAT(host(limit(0, 0)), ElementsAre(0));
  EXPECT_THAT(host(num_over_), ElementsAre(1));
  EXPECT_THAT(combined(6), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST_P(RowCapacityOp, EveryOverflowCounts) {
  limit(3, 5);
  limit(3, 0);
  EXPECT_THAT(host(num_over_), ElementsAre(2));
}

TEST_P(RowCapacityOp, ManySlots) {
  constexpr int64_t kSlots = 3000, kCapacity = 1234;
  const Tensor chosen = random_ints(stream(), {kSlots, 1}, 7, 3);
  plan_ = RoutingPlan::empty(stream(), 7, kSlots);
  make_routing_plan(stream(), plan_, chosen);
  const std::vector<int32_t> before = host(plan_.row_of_slot);
  limit(7, kCapacity);
  const std::vector<int32_t> after = host(plan_.row_of_slot);
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (before[slot] < kCapacity) {
      ASSERT_EQ(after[slot], before[slot]);
    } else {
      ASSERT_GE(after[slot], kSlots);
    }
  }
}

TEST_P(RowCapacityOp, RefusesWhatDoesNotFit) {
  EXPECT_THAT([&] { limit(4, 1); }, ThrowsMessage<Error>(HasSubstr("4 experts of a plan of 3")));
  EXPECT_THAT([&] { limit(3, -1); }, ThrowsMessage<Error>(HasSubstr("a capacity of -1 rows")));
  EXPECT_THAT([&] { limit_rows(stream(), plan_.offsets, num_over_, plan_, 3); },
              ThrowsMessage<Error>(HasSubstr("the memory of the plan's")));
}

INSTANTIATE_TEST_SUITE_P(Devices, RowCapacityOp,
                         ::testing::Values(DeviceCase{DeviceKind::Cpu, DType::F32},
                                           DeviceCase{DeviceKind::Cuda, DType::F32}),
                         case_name);

}  // namespace
}  // namespace ferry::testing
