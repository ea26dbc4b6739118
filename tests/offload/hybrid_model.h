#pragma once

// What the tests of HybridDeviceOptimizer train: parameters of all kinds, whose gradients are
// random numbers plus the values, so that a step that was computed with old values shows in all
// later ones. Nothing is read before the end, so a wait that is missing shows, too.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/ops/elementwise.h"
#include "core/stream_cpu.h"
#include "offload/hybrid_device_optimizer.h"
#include "tests/support/devices.h"

namespace ferry::testing {

/// The streams of the copies.
inline const char* const kToHost = "gradients to host";
inline const char* const kToDevice = "values to device";

/// A CPU whose streams of some names sleep before each copy.
class SlowDevice final : public Device {
 public:
  explicit SlowDevice(std::map<std::string, std::chrono::microseconds> delays)
      : inner_(make_cpu_device()), delays_(std::move(delays)) {}
  DeviceKind kind() const override { return DeviceKind::Cpu; }
  std::string name() const override { return "slow cpu"; }
  std::unique_ptr<Stream> make_stream(std::string name) override {
    const auto found = delays_.find(name);
    if (found == delays_.end()) return std::make_unique<CpuStream>(*this, std::move(name));
    return std::make_unique<SlowStream>(*this, std::move(name), found->second);
  }
  std::shared_ptr<Storage> allocate(Stream& stream, std::string_view name, int64_t bytes) override {
    return inner_->allocate(stream, name, bytes);
  }
  std::shared_ptr<Storage> allocate_host(std::string_view name, int64_t bytes) override {
    return inner_->allocate_host(name, bytes);
  }
  int64_t total_bytes() const override { return inner_->total_bytes(); }
  int64_t free_bytes() const override { return inner_->free_bytes(); }
  /// Of what was allocated on it.
  MemoryLedger& ledger() { return inner_->memory(); }

 private:
  class SlowStream final : public Stream {
   public:
    SlowStream(Device& device, std::string name, std::chrono::microseconds delay)
        : Stream(device, name), inner_(device, std::move(name)), delay_(delay) {}
    Event record() override { return inner_.record(); }
    std::shared_ptr<const TimeStamp> stamp() override { return inner_.stamp(); }
    void wait(const Event& event) override { inner_.wait(event); }
    void synchronize() override { inner_.synchronize(); }
    void zero(const Tensor& tensor) override { inner_.zero(tensor); }
    void copy(const Tensor& to, const Tensor& from) override {
      inner_.enqueue([delay = delay_] { std::this_thread::sleep_for(delay); });
      inner_.copy(to, from);
    }
    void hold(const Tensor& tensor) override { inner_.hold(tensor); }
    bool is_captured() const override { return inner_.is_captured(); }

   private:
    CpuStream inner_;
    std::chrono::microseconds delay_;
  };

  std::unique_ptr<Device> inner_;
  std::map<std::string, std::chrono::microseconds> delays_;
};

inline HybridSettings overlapping(int64_t chunk_elements = int64_t{16} << 20) {
  HybridSettings settings;
  settings.overlap = true;
  settings.chunk_elements = chunk_elements;
  return settings;
}

/// The stream stands still for some milliseconds.
inline void delay(Stream& stream) {
  if (stream.device().is_cpu()) {
    enqueue_cpu(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    return;
  }
  const Tensor large = Tensor::empty(stream, "delay", {int64_t{256} << 20}, DType::F32);
  for (int i = 0; i < 10; ++i) stream.zero(large);
}

/// The bytes of a tensor, wherever it is.
inline std::string bits_of(Stream& stream, const Tensor& tensor) {
  const Tensor host = Tensor::host(stream.device(), "bits", tensor.shape(), tensor.dtype());
  stream.copy(host, tensor);
  stream.record().wait_host();
  return std::string(static_cast<const char*>(host.raw()), static_cast<size_t>(host.bytes()));
}

/// The same with every BF16 NaN as one: a device that rounds makes payloads of its own.
inline std::string rounded_bits_of(Stream& stream, const Tensor& tensor) {
  std::string bits = bits_of(stream, tensor);
  if (tensor.dtype() != DType::BF16) return bits;
  for (size_t i = 0; i < bits.size(); i += sizeof(BFloat16)) {
    BFloat16 element;
    std::memcpy(&element, &bits[i], sizeof element);
    if (!std::isnan(static_cast<float>(element))) continue;
    element.bits = 0x7fff;
    std::memcpy(&bits[i], &element, sizeof element);
  }
  return bits;
}

/// Bytes that a ledger has now under names that begin so.
inline int64_t bytes_of(const MemoryLedger& ledger, const std::string& begin) {
  int64_t bytes = 0;
  for (const MemoryLedger::Usage& usage : ledger.table())
    if (usage.name.starts_with(begin)) bytes += usage.current;
  return bytes;
}

class HybridModel {
 public:
  static constexpr int kBlocks = 4;  // the third has no parameters

  HybridModel(Stream& stream, DType dtype) : stream_(stream), blocks_(kBlocks) {
    const DType wide = accumulate_dtype(dtype);
    add(0, "embedding", {37, 8}, dtype);
    add(0, "norm", {5}, dtype).decay = false;
    add(0, "router", {6, 7}, wide);  // its value is its master
    add(1, "weight", {300}, dtype);
    add(1, "experts", {4, 3, 11}, dtype, ReduceAxis::Expert);
    add(1, "empty", {0, 8}, dtype);  // a shard of a rank that owns none of the rows
    add(1, "bias", {3}, wide).decay = false;
    add(1, "more experts", {70}, dtype, ReduceAxis::Expert);
    add(3, "head", {129}, dtype);
    add(3, "tied", {5, 9}, dtype, ReduceAxis::Tied);
    add(3, "stage", {2}, wide, ReduceAxis::Stage);
  }

  Stream& stream() { return stream_; }
  const std::vector<std::vector<Parameter*>>& blocks() const { return blocks_; }
  std::vector<Parameter*> parameters() const {
    std::vector<Parameter*> all;
    for (const auto& block : blocks_) all.insert(all.end(), block.begin(), block.end());
    return all;
  }
  const Parameter& named(const std::string& name) const {
    for (const auto& parameter : parameters_)
      if (parameter->name == name) return *parameter;
    fail(ExitCode::Internal, "no parameter ", name);
  }
  int64_t elements() const {
    int64_t sum = 0;
    for (const auto& parameter : parameters_) sum += parameter->shape.numel();
    return sum;
  }

  static UpdateScalars scalars(int64_t step) {
    return {0.01 / static_cast<double>(1 + step % 3), 0.1, 1.0 / static_cast<double>(step), step};
  }
  void zero_gradients() {
    for (const auto& parameter : parameters_) stream_.zero(parameter->grad);
  }
  /// Adds the block's gradients of this step, which depend on its values.
  void backward(int block, int64_t step) {
    for (const Parameter* parameter : blocks_[static_cast<size_t>(block)]) {
      const uint64_t seed = 1000 * static_cast<uint64_t>(step) + seed_of(parameter->name);
      accumulate(stream_, parameter->grad,
                 random_tensor(stream_, parameter->shape, parameter->grad.dtype(), seed));
      accumulate(stream_, parameter->grad, parameter->value);
    }
  }
  /// Tells `store` that all of the block's gradients are final.
  void announce(StateStore& store, int block) {
    for (const ReduceAxis axis :
         {ReduceAxis::Dense, ReduceAxis::Stage, ReduceAxis::Tied, ReduceAxis::Expert})
      store.gradients_final(block, axis, stream_.record());
  }
  /// A step as a trainer makes it: two passes, the last of which tells what is final.
  void step(StateStore& store, const UpdateRule& rule, int64_t number, bool slow = false) {
    store.begin_step(stream_);
    zero_gradients();
    for (const bool last : {false, true}) {
      for (int block = 0; block < kBlocks; ++block) store.wait_values(stream_, block);
      for (int block = kBlocks - 1; block >= 0; --block) {
        if (slow) delay(stream_);
        backward(block, number);
        if (last) announce(store, block);
      }
    }
    store.update(stream_, rule, scalars(number));
  }

  /// Bits of every value, master and moment, by name.
  std::map<std::string, std::string> bits(StateStore& store) {
    store.wait_all_values(stream_);
    std::map<std::string, std::string> all;
    for (const auto& parameter : parameters_) {
      const ParameterState& state = store.state(*parameter);
      all[parameter->name + " value"] = rounded_bits_of(stream_, parameter->value);
      all[parameter->name + " master"] = bits_of(stream_, state.master);
      for (size_t i = 0; i < state.moments.size(); ++i)
        all[concat(parameter->name, " moment ", i)] = bits_of(stream_, state.moments[i]);
    }
    return all;
  }

 private:
  static uint64_t seed_of(const std::string& name) {
    uint64_t seed = 7;
    for (const char c : name) seed = 31 * seed + static_cast<unsigned char>(c);
    return seed;
  }
  Parameter& add(size_t block, const std::string& name, const Shape& shape, DType dtype,
                 ReduceAxis axis = ReduceAxis::Dense) {
    auto parameter = std::make_unique<Parameter>();
    parameter->name = name;
    parameter->shape = shape;
    parameter->dtype = dtype;
    parameter->axis = axis;
    parameter->value = random_tensor(stream_, shape, dtype, seed_of(name));
    parameter->grad = Tensor::empty(stream_, "gradients", shape, accumulate_dtype(dtype));
    blocks_[block].push_back(parameter.get());
    return *parameters_.emplace_back(std::move(parameter));
  }

  Stream& stream_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::vector<Parameter*>> blocks_;
};

/// Expects the same bits, and says where they differ.
inline void expect_same_bits(const std::map<std::string, std::string>& have,
                             const std::map<std::string, std::string>& want,
                             const std::string& what) {
  ASSERT_EQ(have.size(), want.size()) << what;
  for (const auto& [name, bits] : want)
    EXPECT_TRUE(have.at(name) == bits) << name << " differs, " << what;
}

/// What the device alone makes of `num_steps` steps.
inline std::map<std::string, std::string> device_only(Stream& stream, DType dtype,
                                                      const UpdateRule& rule, int num_steps,
                                                      const MomentTypes& types = {}) {
  HybridModel model(stream, dtype);
  DeviceStateStore store(stream, model.parameters(), rule, types);
  for (int64_t step = 1; step <= num_steps; ++step) model.step(store, rule, step);
  return model.bits(store);
}

}  // namespace ferry::testing
