#include "offload/hybrid_device_optimizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/offload/hybrid_model.h"

namespace ferry::testing {
namespace {

using Rules = std::vector<std::pair<std::string, std::unique_ptr<UpdateRule>>>;

Rules rules() {
  Rules all;
  all.emplace_back("adamw", make_adamw(0.9, 0.95, 1e-8));
  all.emplace_back("sgd", make_sgd(0.9));
  return all;
}

class HybridOptimizerTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    device().set_poison_memory(true);  // what is read before it is written shows
  }
  std::map<std::string, std::string> hybrid(const UpdateRule& rule, const HybridSettings& settings,
                                            int num_steps, bool slow = false) {
    HybridModel model(stream(), dtype());
    HybridDeviceOptimizer store(stream(), model.blocks(), rule, settings);
    for (int64_t step = 1; step <= num_steps; ++step) model.step(store, rule, step, slow);
    return model.bits(store);
  }
  // Writes random bits, among them denormals, zeros of both signs, infinities and NaNs with
  // payloads, to all of a store's state.
  void plant(HybridModel& model, StateStore& store) {
    std::mt19937_64 random(5);
    const auto bits_for = [&](const Tensor& tensor, int64_t i) -> uint64_t {
      if (tensor.dtype() == DType::F64) {
        const uint64_t special[] = {1,
                                    uint64_t{1} << 63,
                                    0x7ff0000000000000,
                                    0xfff0000000000000,
                                    0x7ff8000000000123,
                                    0xfff4567800000001};
        return i % 2 == 0 ? special[static_cast<size_t>(i / 2) % 6] : random();
      }
      const uint64_t special[] = {1, 0x80000000, 0x7f800000, 0xff800000, 0x7fc12345, 0xff8abcde};
      return i % 2 == 0 ? special[static_cast<size_t>(i / 2) % 6] : random();
    };
    for (Parameter* parameter : model.parameters()) {
      const ParameterState& state = store.state(*parameter);
      std::vector<Tensor> tensors = state.moments;
      tensors.push_back(state.master);
      for (const Tensor& tensor : tensors) {
        const Tensor host = Tensor::host(device(), "planted", tensor.shape(), tensor.dtype());
        const size_t size = size_of(tensor.dtype());
        for (int64_t i = 0; i < tensor.numel(); ++i) {
          const uint64_t bits = bits_for(tensor, i);
          std::memcpy(static_cast<char*>(host.raw()) + static_cast<size_t>(i) * size, &bits, size);
        }
        stream().copy(tensor, host);
      }
      stream().record().wait_host();
      store.publish(stream(), *parameter);
    }
  }
};

TEST_P(HybridOptimizerTest, GivesTheBitsOfTheDevice) {
  for (const auto& [rule_name, rule] : rules()) {
    for (const int num_steps : {1, 10}) {
      const auto want = device_only(stream(), dtype(), *rule, num_steps);
      for (const double fraction : {0.0, 0.5, 1.0})
        for (const HostPart part : {HostPart::First, HostPart::Last})
          for (const bool overlap : {false, true})
            // Parameters that are cut and that share chunks; one chunk for all.
            for (const int64_t chunk_elements : {int64_t{7}, int64_t{96}, int64_t{16} << 20})
              for (const bool pin : {false, true}) {
                if (chunk_elements == 7 && num_steps > 1) continue;
                HybridSettings settings;
                settings.fraction = fraction;
                settings.part = part;
                settings.overlap = overlap;
                settings.pin_gradients = settings.pin_values = pin;
                settings.num_threads = pin ? 3 : 1;
                settings.chunk_elements = chunk_elements;
                expect_same_bits(hybrid(*rule, settings, num_steps), want,
                                 concat(rule_name, ", fraction ", fraction, ", overlap ", overlap,
                                        ", chunks of ", chunk_elements, ", pin ", pin,
                                        part == HostPart::First ? ", first, " : ", last, ",
                                        num_steps, " steps"));
              }
    }
  }
}

TEST_P(HybridOptimizerTest, GivesTheSameBitsWhileTheDeviceIsSlow) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  const auto want = device_only(stream(), dtype(), *rule, 3);
  for (const double fraction : {0.5, 1.0})
    for (const bool overlap : {false, true}) {
      HybridSettings settings;
      settings.fraction = fraction;
      settings.overlap = overlap;
      settings.num_threads = 2;
      settings.chunk_elements = 96;
      expect_same_bits(hybrid(*rule, settings, 3, /*slow=*/true), want,
                       concat("fraction ", fraction, ", overlap ", overlap));
    }
}

TEST_P(HybridOptimizerTest, SomeMayBePinned) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  const auto want = device_only(stream(), dtype(), *rule, 3);
  for (const bool gradients : {false, true}) {
    HybridSettings settings;
    settings.overlap = true;
    settings.pin_gradients = gradients;
    settings.pin_values = !gradients;
    settings.chunk_elements = 96;
    expect_same_bits(hybrid(*rule, settings, 3), want, concat("pin gradients ", gradients));
  }
}

TEST_P(HybridOptimizerTest, TheFractionMayChangeBetweenSteps) {
  for (const auto& [rule_name, rule] : rules()) {
    for (const bool overlap : {false, true}) {
      HybridModel model(stream(), dtype());
      HybridSettings settings;
      settings.overlap = overlap;
      settings.chunk_elements = 96;
      settings.num_threads = 2;
      HybridDeviceOptimizer store(stream(), model.blocks(), *rule, settings);
      int64_t step = 0;
      for (const double fraction : {1.0, 0.3, 0.0, 1.0, 0.7}) {
        store.set_fraction(stream(), fraction);
        EXPECT_EQ(store.fraction(), fraction);
        for (int i = 0; i < 2; ++i) model.step(store, *rule, ++step);
      }
      expect_same_bits(model.bits(store),
                       device_only(stream(), dtype(), *rule, static_cast<int>(step)),
                       concat(rule_name, ", overlap ", overlap));
    }
  }
}

TEST_P(HybridOptimizerTest, MovingKeepsEveryBitOfTheState) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  HybridModel model(stream(), dtype());
  HybridSettings settings;
  settings.chunk_elements = 96;
  HybridDeviceOptimizer store(stream(), model.blocks(), *rule, settings);
  plant(model, store);
  const auto want = model.bits(store);
  for (const double fraction : {0.3, 0.0, 0.6, 1.0}) {
    delay(stream());
    store.set_fraction(stream(), fraction);
    // At once: the host may read what is on the host.
    for (const Parameter* p : model.parameters()) {
      const Tensor& master = store.state(*p).master;
      if (!master.on_host() || p->name == "empty") continue;
      EXPECT_EQ(std::memcmp(master.raw(), want.at(p->name + " master").data(),
                            static_cast<size_t>(master.bytes())),
                0)
          << p->name << " moved to " << fraction;
    }
    expect_same_bits(model.bits(store), want, concat("moved to ", fraction));
  }
}

// The same state, planted on the host and on the device.
TEST_P(HybridOptimizerTest, PublishedValuesAreTheRoundedMastersOfEitherSide) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  HybridModel plain(stream(), dtype());
  DeviceStateStore device_store(stream(), plain.parameters(), *rule);
  plant(plain, device_store);
  const auto want = plain.bits(device_store);
  for (const double fraction : {0.0, 0.5, 1.0}) {
    HybridModel model(stream(), dtype());
    HybridSettings settings;
    settings.fraction = fraction;
    settings.chunk_elements = 96;
    settings.num_threads = 2;
    HybridDeviceOptimizer store(stream(), model.blocks(), *rule, settings);
    plant(model, store);
    expect_same_bits(model.bits(store), want, concat("fraction ", fraction));
  }
}

TEST_P(HybridOptimizerTest, HoldsWhatItShouldWhereItShould) {
  const int64_t word = static_cast<int64_t>(size_of(accumulate()));
  for (const auto& [rule_name, rule] : rules()) {
    const auto num_moments = static_cast<int64_t>(rule->moment_names().size());
    for (const bool overlap : {false, true}) {
      HybridModel model(stream(), dtype());
      HybridSettings settings;
      settings.overlap = overlap;
      HybridDeviceOptimizer store(stream(), model.blocks(), *rule, settings);
      const int64_t all = model.elements();
      const auto on_device = [&](const char* name) { return bytes_of(device().memory(), name); };
      EXPECT_EQ(store.host_memory().current(), (1 + num_moments) * word * all);
      for (int64_t step = 1; step <= 2; ++step) model.step(store, *rule, step);
      const auto bits = model.bits(store);  // all is done
      EXPECT_EQ(store.host_memory().current(), (1 + num_moments) * word * all);
      EXPECT_EQ(store.host_memory().peak(), (1 + num_moments) * word * all) << "no second copy";
      EXPECT_EQ(on_device("masters"), 0);
      EXPECT_EQ(on_device("moments"), 0);

      store.set_fraction(stream(), 0);
      stream().synchronize();
      int64_t narrow = 0;  // elements whose value is no master
      for (const Parameter* p : model.parameters())
        if (p->dtype != accumulate_dtype(p->dtype)) narrow += p->shape.numel();
      EXPECT_EQ(store.host_memory().current(), 0);
      EXPECT_EQ(on_device("masters"), word * narrow);
      EXPECT_EQ(on_device("moments"), num_moments * word * all);

      store.set_fraction(stream(), 0.5);
      stream().synchronize();
      int64_t host_elements = 0, device_masters = 0;
      for (const OptimizerPlace& place : store.places()) {
        const Parameter& p = model.named(place.name);
        if (place.on_host) host_elements += place.elements;
        if (!place.on_host && p.dtype != accumulate_dtype(p.dtype))
          device_masters += place.elements;
        const Tensor& master = store.state(p).master;
        if (place.on_host && place.elements > 0) {
          EXPECT_TRUE(master.on_host()) << place.name;
          EXPECT_FALSE(master.same_memory(p.value)) << place.name;
        }
        if (!place.on_host && !on_cpu()) {
          EXPECT_FALSE(master.on_host()) << place.name;
        }
      }
      EXPECT_GT(host_elements, 0);
      EXPECT_LT(host_elements, all);
      EXPECT_EQ(store.host_memory().current(), (1 + num_moments) * word * host_elements);
      EXPECT_EQ(on_device("masters"), word * device_masters);
      EXPECT_EQ(on_device("moments"), num_moments * word * (all - host_elements));
    }
  }
}

// At fraction 1 they never were on the device, not even while the optimizer was made.
TEST_P(HybridOptimizerTest, TheDeviceNeverSeesMastersAndMomentsOfTheHost) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  HybridModel model(stream(), dtype());
  HybridDeviceOptimizer store(stream(), model.blocks(), *rule, {});
  for (int64_t step = 1; step <= 2; ++step) model.step(store, *rule, step);
  model.bits(store);
  for (const MemoryLedger::Usage& usage : device().memory().table()) {
    EXPECT_FALSE(usage.name.starts_with("masters") && usage.peak > 0) << usage.name;
    EXPECT_FALSE(usage.name.starts_with("moments") && usage.peak > 0) << usage.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, HybridOptimizerTest, device_cases(), case_name);

class HybridNarrowMoments : public HybridOptimizerTest {
 protected:
  const std::unique_ptr<UpdateRule> rule = make_adamw(0.9, 0.95, 1e-8);
  const MomentTypes types{DType::BF16, DType::BF16};
};

TEST_P(HybridNarrowMoments, OfTheDeviceAreThoseOfADeviceAlone) {
  HybridSettings settings;
  settings.fraction = 0;
  settings.moment_types = types;
  expect_same_bits(hybrid(*rule, settings, 4), device_only(stream(), dtype(), *rule, 4, types),
                   "all on the device");
}

TEST_P(HybridNarrowMoments, OfTheHostAreWide) {
  HybridSettings settings;
  settings.moment_types = types;
  settings.overlap = true;
  expect_same_bits(hybrid(*rule, settings, 4), device_only(stream(), dtype(), *rule, 4),
                   "all on the host");
}

TEST_P(HybridNarrowMoments, AreWidenedExactlyAndRoundedOnTheWayBack) {
  HybridModel model(stream(), dtype());
  HybridSettings settings;
  settings.fraction = 0;
  settings.moment_types = types;
  HybridDeviceOptimizer store(stream(), model.blocks(), *rule, settings);
  for (int64_t step = 1; step <= 3; ++step) model.step(store, *rule, step);
  const auto narrow = model.bits(store);
  const auto numbers = [&] {
    std::map<std::string, std::vector<double>> all;
    for (const Parameter* p : model.parameters())
      for (size_t i = 0; i < 2; ++i)
        all[concat(p->name, i)] = read_back_as_double(stream(), store.state(*p).moments[i]);
    return all;
  };
  const auto before = numbers();
  store.set_fraction(stream(), 1);
  for (const Parameter* p : model.parameters())
    EXPECT_EQ(store.state(*p).moments[0].dtype(), DType::F32);
  EXPECT_EQ(numbers(), before);
  store.set_fraction(stream(), 0);
  expect_same_bits(model.bits(store), narrow, "there and back");
  model.step(store, *rule, 4);
  store.set_fraction(stream(), 1);
  model.step(store, *rule, 5);  // of full precision from here on
  store.set_fraction(stream(), 0.5);
  for (const OptimizerPlace& place : store.places())
    EXPECT_EQ(store.state(model.named(place.name)).moments[1].dtype(),
              place.on_host ? DType::F32 : DType::BF16);
}

INSTANTIATE_TEST_SUITE_P(Devices, HybridNarrowMoments,
                         ::testing::Values(DeviceCase{DeviceKind::Cpu, DType::F32},
                                           DeviceCase{DeviceKind::Cpu, DType::BF16},
                                           DeviceCase{DeviceKind::Cuda, DType::F32},
                                           DeviceCase{DeviceKind::Cuda, DType::BF16}),
                         case_name);

}  // namespace
}  // namespace ferry::testing
