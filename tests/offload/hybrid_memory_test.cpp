// Host memory of HybridDeviceOptimizer's copies.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/offload/hybrid_model.h"

namespace ferry::testing {
namespace {

using std::chrono::microseconds;
using ::testing::HasSubstr;

// What steps need of page-locked memory is there from the beginning.
TEST(HybridMemory, ReservesAllBuffersAtOnce) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  for (const bool overlap : {false, true}) {
    SlowDevice device({{kToHost, microseconds(500)}, {kToDevice, microseconds(2000)}});
    CpuStream stream(device, "compute");
    HybridModel model(stream, DType::F32);
    HybridSettings settings = overlapping(64);
    settings.overlap = overlap;
    HybridDeviceOptimizer store(stream, model.blocks(), *rule, settings);
    const auto peak = [&](const char* name) {
      for (const MemoryLedger::Usage& usage : device.ledger().table())
        if (usage.name == name) return usage.peak;
      return int64_t{0};
    };
    const int64_t gradients = peak("offloaded gradients"), values = peak("offloaded values");
    EXPECT_GT(gradients, 0);
    EXPECT_EQ(values, 4 * 64 * 4) << "four chunks";
    for (int64_t step = 1; step <= 3; ++step) model.step(store, *rule, step);
    model.bits(store);
    EXPECT_EQ(peak("offloaded gradients"), gradients) << "overlap " << overlap;
    EXPECT_EQ(peak("offloaded values"), values) << "overlap " << overlap;
    // Neither does a step that is not made need more: its copies are dropped.
    for (int i = 0; i < 3; ++i) {
      store.begin_step(stream);
      for (int block = 0; block < HybridModel::kBlocks; ++block) model.announce(store, block);
    }
    EXPECT_EQ(peak("offloaded gradients"), gradients) << "not made, overlap " << overlap;
  }
}

// A CPU whose host memory for copies ends at so many bytes.
class LimitedDevice final : public Device {
 public:
  explicit LimitedDevice(int64_t limit) : inner_(make_cpu_device()), left_(limit) {}
  DeviceKind kind() const override { return DeviceKind::Cpu; }
  std::string name() const override { return "limited cpu"; }
  std::unique_ptr<Stream> make_stream(std::string name) override {
    return std::make_unique<CpuStream>(*this, std::move(name));
  }
  std::shared_ptr<Storage> allocate(Stream& stream, std::string_view name, int64_t bytes) override {
    return inner_->allocate(stream, name, bytes);
  }
  std::shared_ptr<Storage> allocate_host(std::string_view name, int64_t bytes) override {
    if (name == "offloaded gradients" && (left_ -= bytes) < 0)
      fail(ExitCode::Resource, "no host memory for ", name);
    return inner_->allocate_host(name, bytes);
  }
  int64_t total_bytes() const override { return inner_->total_bytes(); }
  int64_t free_bytes() const override { return inner_->free_bytes(); }

 private:
  std::unique_ptr<Device> inner_;
  int64_t left_;
};

TEST(HybridMemory, TooLittleMemoryForCopiesShowsAtTheStart) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  LimitedDevice device(3000);
  CpuStream stream(device, "compute");
  HybridModel model(stream, DType::BF16);
  try {
    HybridDeviceOptimizer store(stream, model.blocks(), *rule, overlapping());
    FAIL() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Resource);
    EXPECT_THAT(error.what(), HasSubstr("no host memory for offloaded gradients"));
  }
  HybridSettings pageable = overlapping();
  pageable.pin_gradients = false;
  HybridDeviceOptimizer store(stream, model.blocks(), *rule, pageable);
  EXPECT_EQ(store.places().size(), model.parameters().size());
}

}  // namespace
}  // namespace ferry::testing
