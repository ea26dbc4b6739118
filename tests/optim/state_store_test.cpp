#include "optim/state_store.h"

#include <gtest/gtest.h>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

class StateStoreTest : public CpuTest {
 protected:
  Parameter parameter(const std::vector<double>& values, DType dtype) {
    Parameter result;
    result.shape = {static_cast<int64_t>(values.size())};
    result.dtype = dtype;
    result.value = tensor_of(stream(), values, result.shape, dtype);
    return result;
  }
};

TEST_F(StateStoreTest, MasterOfANarrowValueIsACopyInFullPrecision) {
  Parameter weight = parameter({1.0, -0.1, 3e5}, DType::BF16);
  DeviceStateStore store(stream(), {&weight});
  const AdamwState& state = store.state(weight);
  EXPECT_EQ(state.master.dtype(), DType::F32);
  EXPECT_EQ(state.master.shape(), weight.shape);
  EXPECT_EQ(read_back_as_double(stream(), state.master),
            read_back_as_double(stream(), weight.value));
}

TEST_F(StateStoreTest, MasterOfAFullPrecisionValueIsTheValue) {
  for (const DType dtype : {DType::F32, DType::F64}) {
    Parameter weight = parameter({1.0, -0.1}, dtype);
    DeviceStateStore store(stream(), {&weight});
    EXPECT_TRUE(store.state(weight).master.same_memory(weight.value));
    EXPECT_EQ(store.state(weight).exp_avg.dtype(), dtype);
  }
}

TEST_F(StateStoreTest, MomentsAreZeroAndEachParameterHasItsOwn) {
  device().set_poison_memory(true);
  Parameter a = parameter({1, 2, 3}, DType::BF16), b = parameter({4}, DType::F32);
  DeviceStateStore store(stream(), {&a, &b});
  for (const Parameter* p : {&a, &b}) {
    for (const Tensor& moment : {store.state(*p).exp_avg, store.state(*p).exp_avg_sq}) {
      EXPECT_EQ(moment.dtype(), DType::F32);
      EXPECT_EQ(moment.shape(), p->shape);
      EXPECT_EQ(read_back_as_double(stream(), moment),
                std::vector<double>(static_cast<size_t>(p->shape.numel())));
    }
    EXPECT_FALSE(store.state(*p).exp_avg.same_memory(store.state(*p).exp_avg_sq));
  }
}

TEST_F(StateStoreTest, AShardMayBeEmpty) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    Parameter whole = parameter({1, 2}, dtype);
    Parameter shard = whole;
    shard.value = whole.value.rows(2, 2);
    shard.shape = {0};
    DeviceStateStore store(stream(), {&shard});
    const AdamwState& state = store.state(shard);
    for (const Tensor& tensor : {state.master, state.exp_avg, state.exp_avg_sq}) {
      EXPECT_TRUE(tensor.defined());
      EXPECT_EQ(tensor.shape(), (Shape{0}));
    }
    EXPECT_EQ(read_back_as_double(stream(), whole.value), (std::vector<double>{1, 2}));
  }
}

}  // namespace
}  // namespace ferry::testing
