// Streams, threads and errors of HybridDeviceOptimizer's updates.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <mutex>
#include <set>

#include "tests/offload/hybrid_model.h"

namespace ferry::testing {
namespace {

using std::chrono::microseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// AdamW that tells which masters are updated on the host, in order, or fails at one of them.
class WatchedRule final : public UpdateRule {
 public:
  std::span<const std::string_view> moment_names() const override { return rule_->moment_names(); }
  void update(Stream& stream, const Tensor& value, const ParameterState& state, const Tensor& grad,
              const UpdateScalars& scalars) const override {
    rule_->update(stream, value, state, grad, scalars);
  }
  void update_on_host(const Tensor& value, const ParameterState& state, const Tensor& grad,
                      const UpdateScalars& scalars) const override {
    const std::string& name = names.at(state.master.storage()->id());
    if (name == fails_at) fail(ExitCode::Internal, "planted failure at ", name);
    rule_->update_on_host(value, state, grad, scalars);
    const std::lock_guard lock(mutex_);
    updated_.push_back(name);
  }
  void watch(const HybridModel& model, StateStore& store) {
    for (const Parameter* parameter : model.parameters())
      names[store.state(*parameter).master.storage()->id()] = parameter->name;
  }
  // Since the last call.
  std::vector<std::string> updated() const {
    const std::lock_guard lock(mutex_);
    return std::exchange(updated_, {});
  }
  // As soon as there are `count` of them, sorted.
  std::set<std::string> first(size_t count) const {
    std::set<std::string> names;
    for (int i = 0; i < 10000 && names.size() < count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::lock_guard lock(mutex_);
      names = std::set(updated_.begin(), updated_.end());
    }
    return names;
  }

  std::map<uint64_t, std::string> names;
  std::string fails_at;

 private:
  std::unique_ptr<UpdateRule> rule_ = make_adamw(0.9, 0.95, 1e-8);
  mutable std::mutex mutex_;
  mutable std::vector<std::string> updated_;
};

// Each stream in turn much slower than all others: no result may depend on it.
TEST(HybridUpdate, SlowCopiesChangeNoBit) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  const std::map<std::string, microseconds> cases[] = {{{kToHost, microseconds(300)}},
                                                       {{kToDevice, microseconds(300)}}};
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const auto& delays : cases) {
      SlowDevice device(delays);
      CpuStream stream(device, "compute");
      const auto want = device_only(stream, dtype, *rule, 5);
      for (const double fraction : {0.5, 1.0})
        for (const bool overlap : {false, true})
          for (const bool slow : {false, true}) {
            HybridSettings settings = overlapping(64);
            settings.fraction = fraction;
            settings.overlap = overlap;
            HybridModel model(stream, dtype);
            HybridDeviceOptimizer store(stream, model.blocks(), *rule, settings);
            for (int64_t step = 1; step <= 5; ++step) model.step(store, *rule, step, slow);
            expect_same_bits(model.bits(store), want,
                             concat(delays.begin()->first, " slow, fraction ", fraction,
                                    ", overlap ", overlap, ", compute slow ", slow));
          }
    }
  }
}

// As a buffer of gradients that the next step zeroes and fills while copies of it are under way.
TEST(HybridUpdate, GradientsAreNotOverwrittenBeforeTheyAreCopied) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  SlowDevice device({{kToHost, microseconds(1000)}});
  CpuStream stream(device, "compute");
  const auto want = device_only(stream, DType::BF16, *rule, 1);
  HybridModel model(stream, DType::BF16);
  HybridDeviceOptimizer store(stream, model.blocks(), *rule, overlapping(64));
  model.step(store, *rule, 1);
  store.begin_step(stream);
  for (const Parameter* parameter : model.parameters())
    fill(stream, parameter->grad, std::numeric_limits<double>::quiet_NaN());
  expect_same_bits(model.bits(store), want, "overwritten");
}

// Whoever reads values before the update sees the old ones, however late it comes to it.
TEST(HybridUpdate, ValuesAreNotOverwrittenBeforeTheyAreRead) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  SlowDevice device({});
  CpuStream stream(device, "compute");
  for (const bool overlap : {false, true}) {
    HybridModel model(stream, DType::BF16);
    HybridSettings settings = overlapping(64);
    settings.overlap = overlap;
    HybridDeviceOptimizer store(stream, model.blocks(), *rule, settings);
    std::vector<std::string> before;
    for (const Parameter* parameter : model.parameters())
      before.push_back(bits_of(stream, parameter->value));
    store.begin_step(stream);
    model.zero_gradients();
    for (int block = 0; block < HybridModel::kBlocks; ++block) {
      model.backward(block, 1);
      model.announce(store, block);
    }
    stream.synchronize();  // all gradients may be on the host
    std::vector<Tensor> seen;
    for (const Parameter* parameter : model.parameters()) {
      delay(stream);
      seen.push_back(Tensor::empty(stream, "seen", parameter->shape, parameter->dtype));
      stream.copy(seen.back(), parameter->value);
    }
    store.update(stream, *rule, HybridModel::scalars(1));
    store.wait_all_values(stream);
    for (size_t i = 0; i < seen.size(); ++i)
      EXPECT_TRUE(bits_of(stream, seen[i]) == before[i])
          << model.parameters()[i]->name << ", overlap " << overlap;
  }
}

class HybridUpdateTest : public CpuTest {
 protected:
  HybridUpdateTest() { device().set_poison_memory(true); }
  void fill_gradients(HybridModel& model, double number) {
    for (const Parameter* parameter : model.parameters()) fill(stream(), parameter->grad, number);
  }
  std::map<std::string, std::string> want(int num_steps) {
    return device_only(stream(), DType::BF16, rule, num_steps);
  }

  WatchedRule rule;
};

TEST_F(HybridUpdateTest, AStepThatIsNotMadeLeavesNoTrace) {
  for (const bool overlap : {false, true}) {
    HybridModel model(stream(), DType::BF16);
    HybridSettings settings = overlapping(96);
    settings.overlap = overlap;
    HybridDeviceOptimizer store(stream(), model.blocks(), rule, settings);
    rule.watch(model, store);
    model.step(store, rule, 1);
    const auto before = model.bits(store);
    rule.updated();
    store.begin_step(stream());
    fill_gradients(model, std::numeric_limits<double>::quiet_NaN());
    for (int block = HybridModel::kBlocks - 1; block >= 0; --block) model.announce(store, block);
    // No update: the norm was not finite.
    store.begin_step(stream());
    model.zero_gradients();
    expect_same_bits(model.bits(store), before, concat("not made, overlap ", overlap));
    EXPECT_THAT(rule.updated(), IsEmpty());
    for (int64_t step = 2; step <= 3; ++step) model.step(store, rule, step);
    expect_same_bits(model.bits(store), want(3), concat("made after it, overlap ", overlap));
  }
}

// The first time NaNs are announced; then only some of the good gradients are.
TEST_F(HybridUpdateTest, WhatIsNotAnnouncedIsSentByTheUpdate) {
  for (const std::vector<int>& announced :
       {std::vector<int>{}, std::vector<int>{3}, std::vector<int>{3, 0}}) {
    HybridModel model(stream(), DType::BF16);
    HybridDeviceOptimizer store(stream(), model.blocks(), rule, overlapping(96));
    rule.watch(model, store);
    for (int64_t step = 1; step <= 3; ++step) {
      store.begin_step(stream());
      fill_gradients(model, std::numeric_limits<double>::quiet_NaN());
      for (int block = 0; block < HybridModel::kBlocks; ++block) model.announce(store, block);
      store.begin_step(stream());
      model.zero_gradients();
      store.wait_all_values(stream());
      for (const bool last : {false, true})
        for (int block = HybridModel::kBlocks - 1; block >= 0; --block) {
          model.backward(block, step);
          if (last && std::count(announced.begin(), announced.end(), block))
            model.announce(store, block);
        }
      store.update(stream(), rule, HybridModel::scalars(step));
    }
    expect_same_bits(model.bits(store), want(3), concat(announced.size(), " announced"));
  }
}

TEST_F(HybridUpdateTest, GoesThroughBlocksInTheOrderOfForwardTiedOnesFirst) {
  for (const bool overlap : {false, true}) {
    HybridModel model(stream(), DType::BF16);
    HybridSettings settings = overlapping();
    settings.overlap = overlap;
    HybridDeviceOptimizer store(stream(), model.blocks(), rule, settings);
    rule.watch(model, store);
    rule.updated();
    store.begin_step(stream());
    model.zero_gradients();
    for (int block = HybridModel::kBlocks - 1; block >= 0; --block) {
      model.backward(block, 1);
      model.announce(store, block);
    }
    stream().synchronize();
    store.begin_step(stream());  // waits for the copies; they are made again by the update
    store.update(stream(), rule, HybridModel::scalars(1));
    store.wait_all_values(stream());
    EXPECT_THAT(rule.updated(), ElementsAre("tied", "embedding", "norm", "router", "weight",
                                            "experts", "more experts", "bias", "head", "stage"));
  }
}

// Blocks whose gradients are there go first, while others are still being computed.
TEST_F(HybridUpdateTest, DoesNotWaitForGradientsThatAreLateWhileOthersAreThere) {
  HybridModel model(stream(), DType::BF16);
  HybridDeviceOptimizer store(stream(), model.blocks(), rule, overlapping());
  rule.watch(model, store);
  rule.updated();
  const std::unique_ptr<Stream> late = device().make_stream("late reduction");
  std::promise<void> gate;
  enqueue_cpu(*late, [opened = gate.get_future().share()] { opened.wait(); });
  store.begin_step(stream());
  model.zero_gradients();
  for (const bool last : {false, true}) {
    for (int block = HybridModel::kBlocks - 1; block >= 0; --block) {
      model.backward(block, 1);
      if (last && block > 0) model.announce(store, block);
    }
  }
  for (const ReduceAxis axis : {ReduceAxis::Dense, ReduceAxis::Stage})
    store.gradients_final(0, axis, late->record());
  store.update(stream(), rule, HybridModel::scalars(1));
  EXPECT_THAT(rule.first(7),
              ElementsAre("bias", "experts", "head", "more experts", "stage", "tied", "weight"));
  const Event others = [&] {
    store.wait_values(stream(), 1);
    store.wait_values(stream(), 3);
    return stream().record();
  }();
  others.wait_host();  // does not hang: these blocks can go on
  gate.set_value();
  expect_same_bits(model.bits(store), want(1), "late");
}

TEST_F(HybridUpdateTest, AnErrorOfTheHostReachesWhoWaits) {
  HybridModel model(stream(), DType::BF16);
  HybridDeviceOptimizer store(stream(), model.blocks(), rule, overlapping());
  rule.watch(model, store);
  rule.fails_at = "weight";  // of block 1
  model.step(store, rule, 1);
  const auto planted = ThrowsMessage<Error>(HasSubstr("planted failure at weight"));
  EXPECT_THAT([&] { store.wait_values(stream(), 1); }, planted);
  EXPECT_THAT([&] { store.wait_values(stream(), 1); }, planted) << "again";
  EXPECT_THAT([&] { store.wait_all_values(stream()); }, planted);
  // Never again as if nothing had happened.
  EXPECT_THAT([&] { store.update(stream(), rule, HybridModel::scalars(2)); }, planted);
  EXPECT_THAT([&] { store.state(model.named("embedding")); }, planted);
}

TEST_F(HybridUpdateTest, WithoutOverlapAnErrorIsThatOfTheUpdate) {
  HybridModel model(stream(), DType::BF16);
  HybridSettings settings;
  settings.num_threads = 3;
  HybridDeviceOptimizer store(stream(), model.blocks(), rule, settings);
  rule.watch(model, store);
  rule.fails_at = "head";
  EXPECT_THAT([&] { model.step(store, rule, 1); },
              ThrowsMessage<Error>(HasSubstr("planted failure at head")));
}

TEST_F(HybridUpdateTest, AnUpdateThatNobodyWaitsForEndsWithTheStore) {
  std::vector<std::string> updated = [&] {
    HybridModel model(stream(), DType::BF16);
    HybridDeviceOptimizer store(stream(), model.blocks(), rule, overlapping(64));
    rule.watch(model, store);
    rule.updated();
    model.step(store, rule, 1);
    return rule.updated();
  }();
  for (const std::string& name : rule.updated()) updated.push_back(name);
  EXPECT_THAT(updated, ::testing::Contains("stage")) << "the last one";
}

TEST_F(HybridUpdateTest, RefusesAnotherRule) {
  HybridModel model(stream(), DType::BF16);
  HybridDeviceOptimizer store(stream(), model.blocks(), rule, {});
  const auto other = make_sgd(0.9);
  EXPECT_THAT([&] { store.update(stream(), *other, HybridModel::scalars(1)); },
              ThrowsMessage<Error>(HasSubstr("another rule")));
}

TEST_F(HybridUpdateTest, TellsWhenUpdatesAreMade) {
  HybridModel model(stream(), DType::BF16);
  for (const bool overlap : {false, true}) {
    HybridSettings settings;
    settings.overlap = overlap;
    HybridDeviceOptimizer store(stream(), model.blocks(), rule, settings);
    EXPECT_EQ(store.updates_later(), overlap);
  }
}

TEST_F(HybridUpdateTest, CountsBytesAndTime) {
  for (const bool overlap : {false, true}) {
    for (const double fraction : {0.0, 0.5, 1.0}) {
      HybridModel model(stream(), DType::BF16);
      HybridSettings settings = overlapping(96);
      settings.overlap = overlap;
      settings.fraction = fraction;
      HybridDeviceOptimizer store(stream(), model.blocks(), rule, settings);
      rule.watch(model, store);
      for (int64_t step = 1; step <= 3; ++step) {
        model.step(store, rule, step);
        model.bits(store);
        const UpdateTimes times = store.times();
        int64_t elements = 0, value_bytes = 0;
        for (const OptimizerPlace& place : store.places()) {
          if (!place.on_host) continue;
          elements += place.elements;
          value_bytes +=
              place.elements * static_cast<int64_t>(size_of(model.named(place.name).dtype));
        }
        EXPECT_EQ(times.host_elements, elements);
        EXPECT_EQ(times.d2h_bytes, 4 * elements);
        EXPECT_EQ(times.h2d_bytes, value_bytes);
        if (elements == 0) continue;
        EXPECT_GT(times.wall, 0);
        EXPECT_GT(times.d2h, 0);
        EXPECT_GT(times.cpu_update, 0);
        EXPECT_GT(times.h2d, 0);
        EXPECT_GT(times.exposed, 0);
        EXPECT_GE(times.wall, times.cpu_update);
      }
    }
  }
}

// Copies of gradients of a step that was not made do not count.
TEST_F(HybridUpdateTest, CountsWhatWasUsed) {
  HybridModel model(stream(), DType::BF16);
  HybridDeviceOptimizer store(stream(), model.blocks(), rule, overlapping(96));
  rule.watch(model, store);
  store.begin_step(stream());
  for (int block = 0; block < HybridModel::kBlocks; ++block) model.announce(store, block);
  model.step(store, rule, 1);
  model.bits(store);
  EXPECT_EQ(store.times().d2h_bytes, 4 * model.elements());
}

}  // namespace
}  // namespace ferry::testing
