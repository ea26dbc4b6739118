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
  std::vector<double> elements(const Tensor& tensor) {
    return read_back_as_double(stream(), tensor);
  }

  const std::unique_ptr<UpdateRule> adamw = make_adamw(0.9, 0.95, 1e-8), sgd = make_sgd(0.9);
};

TEST_F(StateStoreTest, MasterOfANarrowValueIsACopyInFullPrecision) {
  Parameter weight = parameter({1.0, -0.1, 3e5}, DType::BF16);
  DeviceStateStore store(stream(), {&weight}, *adamw);
  const ParameterState& state = store.state(weight);
  EXPECT_EQ(state.master.dtype(), DType::F32);
  EXPECT_EQ(state.master.shape(), weight.shape);
  EXPECT_EQ(elements(state.master), elements(weight.value));
}

TEST_F(StateStoreTest, MasterOfAFullPrecisionValueIsTheValue) {
  for (const DType dtype : {DType::F32, DType::F64}) {
    Parameter weight = parameter({1.0, -0.1}, dtype);
    DeviceStateStore store(stream(), {&weight}, *adamw);
    EXPECT_TRUE(store.state(weight).master.same_memory(weight.value));
    EXPECT_EQ(store.state(weight).moments[0].dtype(), dtype);
  }
}

TEST_F(StateStoreTest, MomentsAreZeroAndEachParameterHasItsOwn) {
  device().set_poison_memory(true);
  Parameter a = parameter({1, 2, 3}, DType::BF16), b = parameter({4}, DType::F32);
  for (const UpdateRule* rule : {adamw.get(), sgd.get()}) {
    DeviceStateStore store(stream(), {&a, &b}, *rule);
    std::vector<Tensor> all;
    for (const Parameter* p : {&a, &b}) {
      ASSERT_EQ(store.state(*p).moments.size(), rule->moment_names().size());
      for (const Tensor& moment : store.state(*p).moments) {
        EXPECT_EQ(moment.dtype(), DType::F32);
        EXPECT_EQ(moment.shape(), p->shape);
        EXPECT_EQ(elements(moment), std::vector<double>(static_cast<size_t>(p->shape.numel())));
        for (const Tensor& other : all) EXPECT_NE(moment.storage(), other.storage());
        all.push_back(moment);
      }
    }
  }
}

TEST_F(StateStoreTest, MomentsMayBeNarrowEachByItself) {
  device().set_poison_memory(true);
  Parameter weight = parameter({1, 2, 3}, DType::BF16);
  const auto dtypes = [&](const MomentTypes& types) {
    DeviceStateStore store(stream(), {&weight}, *adamw, types);
    std::string text;
    for (const Tensor& moment : store.state(weight).moments) {
      text += concat(name_of(moment.dtype()), " ");
      EXPECT_EQ(elements(moment), std::vector<double>(3, 0));
    }
    EXPECT_EQ(store.state(weight).master.dtype(), DType::F32);
    return text;
  };
  const std::string f32 = concat(name_of(DType::F32), " "),
                    bf16 = concat(name_of(DType::BF16), " ");
  EXPECT_EQ(dtypes({}), f32 + f32);
  EXPECT_EQ(dtypes({DType::BF16, std::nullopt}), bf16 + f32);
  EXPECT_EQ(dtypes({std::nullopt, DType::BF16}), f32 + bf16);
  EXPECT_EQ(dtypes({DType::BF16, DType::BF16}), bf16 + bf16);
}

TEST_F(StateStoreTest, AShardMayBeEmpty) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    Parameter whole = parameter({1, 2}, dtype);
    Parameter shard = whole;
    shard.value = whole.value.rows(2, 2);
    shard.grad = tensor_of(stream(), {}, {0}, DType::F32);
    shard.shape = {0};
    DeviceStateStore store(stream(), {&shard}, *adamw);
    const ParameterState& state = store.state(shard);
    for (const Tensor& tensor : {state.master, state.moments[0], state.moments[1]}) {
      EXPECT_TRUE(tensor.defined());
      EXPECT_EQ(tensor.shape(), (Shape{0}));
    }
    store.update(stream(), *adamw, {.lr = 1});
    EXPECT_EQ(elements(whole.value), (std::vector<double>{1, 2}));
  }
}

TEST_F(StateStoreTest, PublishedValuesAreRoundedMasters) {
  Parameter narrow = parameter({1, 2}, DType::BF16), full = parameter({1, 2}, DType::F32);
  DeviceStateStore store(stream(), {&narrow, &full}, *adamw);
  for (const Parameter* p : {&narrow, &full}) {
    const Tensor& master = store.state(*p).master;
    stream().copy(master, tensor_of(stream(), {1.001, -2.003}, p->shape, DType::F32));
    store.publish(stream(), *p);
    stream().synchronize();
    for (int64_t i = 0; i < 2; ++i) {
      const double want = master.data<float>()[i];
      EXPECT_EQ(elements(p->value)[static_cast<size_t>(i)],
                p == &full ? want : static_cast<float>(BFloat16(want)));
    }
  }
}

// Each parameter by itself, and decay where it has some.
TEST_F(StateStoreTest, UpdatesAllParameters) {
  for (const UpdateRule* rule : {adamw.get(), sgd.get()}) {
    Parameter decays = parameter({1, 2, 3}, DType::BF16), stays = parameter({4, 5}, DType::F32);
    stays.decay = false;
    for (Parameter* p : {&decays, &stays})
      p->grad = random_tensor(stream(), p->shape, DType::F32, 7);
    const UpdateScalars scalars{.lr = 0.1, .weight_decay = 0.5, .grad_scale = 2, .step = 3};
    std::vector<std::vector<double>> want;
    for (Parameter* p : {&decays, &stays}) {
      Parameter alone = *p;
      alone.value = tensor_of(stream(), elements(p->value), p->shape, p->dtype);
      UpdateScalars own = scalars;
      if (p == &stays) own.weight_decay = 0;
      const ParameterState state = make_device_state(stream(), alone, *rule, {});
      rule->update(stream(), alone.value, state, p->grad, own);
      want.push_back(elements(state.master));
    }
    DeviceStateStore store(stream(), {&decays, &stays}, *rule);
    store.begin_step(stream());
    store.update(stream(), *rule, scalars);
    store.wait_all_values(stream());
    EXPECT_FALSE(store.updates_later());
    EXPECT_EQ(elements(store.state(decays).master), want[0]);
    EXPECT_EQ(elements(store.state(stays).master), want[1]);
  }
}

}  // namespace
}  // namespace ferry::testing
