#pragma once

// One test body for every device and dtype: TEST_P over DeviceCase, with a fixture that owns the
// device under test and a float64 CPU stream as the reference.
//
//   class Add : public DeviceTest {};
//   TEST_P(Add, IsElementwise) { ... op on stream() ...; ... op on reference() with exact(x) ... }
//   INSTANTIATE_TEST_SUITE_P(Devices, Add, device_cases(), case_name);

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/host_copy.h"
#include "core/tensor.h"
#include "tests/support/expect_close.h"
#include "tests/support/random_tensor.h"

namespace ferry::testing {

struct DeviceCase {
  DeviceKind kind = DeviceKind::Cpu;
  DType dtype = DType::F32;
};

inline std::ostream& operator<<(std::ostream& out, const DeviceCase& device_case) {
  return out << (device_case.kind == DeviceKind::Cpu ? "cpu_" : "cuda_")
             << name_of(device_case.dtype);
}

/// "cpu_f64", "cuda_bf16": the name of an instance, in test listings and filters.
inline std::string case_name(const ::testing::TestParamInfo<DeviceCase>& info) {
  return concat(info.param);
}

/// The CPU with F32, F64 and BF16, and CUDA with F32 and BF16 (F64 is the CPU's).
inline auto device_cases() {
  return ::testing::Values(
      DeviceCase{DeviceKind::Cpu, DType::F32}, DeviceCase{DeviceKind::Cpu, DType::F64},
      DeviceCase{DeviceKind::Cpu, DType::BF16}, DeviceCase{DeviceKind::Cuda, DType::F32},
      DeviceCase{DeviceKind::Cuda, DType::BF16});
}

/// Spacing of the dtype's numbers at 1: what one rounding may cost, relatively, is half of it.
inline double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return 0x1p-52;
    case DType::F32:
      return 0x1p-23;
    case DType::BF16:
      return 0x1p-7;
    default:
      return 0;
  }
}

/// A CPU device with one stream, for tests that are not about devices.
class CpuTest : public ::testing::Test {
 protected:
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream("test");
};

/// Skips CUDA cases where there is no GPU.
class DeviceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    const bool cuda = GetParam().kind == DeviceKind::Cuda;
    if (cuda && num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    device_ = cuda ? make_cuda_device(0) : make_cpu_device();
    stream_ = device_->make_stream("test");
    reference_device_ = make_cpu_device();
    reference_ = reference_device_->make_stream("reference");
  }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Stream& reference() { return *reference_; }
  DType dtype() const { return GetParam().dtype; }
  DType accumulate() const { return accumulate_dtype(GetParam().dtype); }
  bool on_cpu() const { return GetParam().kind == DeviceKind::Cpu; }

  /// Uniform in [-scale, scale), of the case's dtype.
  Tensor random(const Shape& shape, uint64_t seed, double scale = 1) {
    return random_tensor(stream(), shape, dtype(), seed, scale);
  }
  /// An output on the device under test that is NaN until an op writes it.
  Tensor output(const Shape& shape) { return poisoned(stream(), shape, dtype()); }
  Tensor output(const Shape& shape, DType dtype) { return poisoned(stream(), shape, dtype); }
  Tensor reference_output(const Shape& shape) { return poisoned(reference(), shape, DType::F64); }
  /// The same values, exactly, as float64 on the reference stream. Undefined stays undefined.
  Tensor exact(const Tensor& tensor) {
    if (!tensor.defined()) return Tensor();
    return from_host(reference(), "exact", read_back_as_double(stream(), tensor), tensor.shape());
  }
  /// The same integers on the reference stream.
  Tensor reference_ints(const Tensor& tensor) {
    return from_host(reference(), "ints", read_back<int32_t>(stream(), tensor), tensor.shape());
  }
  Tensor ints(const std::vector<int32_t>& values, const Shape& shape) {
    return from_host(stream(), "ints", values, shape);
  }

  /// `actual` of the device under test against `expected` of the reference stream.
  void expect_close(const Tensor& actual, const Tensor& expected, double rel, double abs,
                    std::source_location where = std::source_location::current()) {
    ASSERT_EQ(concat(actual.shape()), concat(expected.shape()));
    testing::expect_close(read_back_as_double(stream(), actual),
                          read_back_as_double(reference(), expected), rel, abs, where);
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Device> reference_device_;
  std::unique_ptr<Stream> reference_;
};

}  // namespace ferry::testing
