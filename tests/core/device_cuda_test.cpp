// What streams and memory of a GPU promise. Includes nothing of CUDA, so it also builds without.

#include "core/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "core/host_copy.h"
#include "core/stream_cpu.h"
#include "core/tensor.h"

namespace ferry {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr int64_t kMebi = int64_t{1} << 20;
// Large enough that a copy of it is still under way when the next call is made.
constexpr int64_t kMany = 16 * kMebi;

// The code and the text of the Error that `body` throws.
template <class Body>
std::pair<ExitCode, std::string> error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ExitCode::Done, "no error"};
}

std::vector<float> counting(int64_t size) {
  std::vector<float> values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

// Stops a CPU stream until open(), at the latest when the gate goes.
class Gate {
 public:
  explicit Gate(Stream& cpu) {
    enqueue_cpu(cpu, [opened = opened_.get_future().share()] { opened.wait(); });
  }
  ~Gate() { open(); }
  void open() {
    if (!is_open_) opened_.set_value();
    is_open_ = true;
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    device_ = make_cuda_device(0);
    stream_ = device_->make_stream("first");
    other_ = device_->make_stream("second");
    cpu_ = make_cpu_device();
    cpu_stream_ = cpu_->make_stream("cpu");
    // The driver loads its kernels at their first use, and may wait for the device to do so; the
    // gates below stop the device until this thread opens them.
    const Tensor warm = Tensor::empty(*stream_, "warm-up", {2}, DType::F32);
    stream_->zero(warm);
    stream_->copy(warm.rows(0, 1), warm.rows(1, 2));
    stream_->synchronize();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Stream> other_;
  std::unique_ptr<Device> cpu_;
  std::unique_ptr<Stream> cpu_stream_;
};

TEST(CudaDevices, AnOrdinalThatDoesNotExistIsAnErrorOfResources) {
  const auto [code, text] = error_of([] { make_cuda_device(1000); });
  EXPECT_EQ(code, ExitCode::Resource);
  if (num_cuda_devices() > 0) {
    EXPECT_THAT(text, HasSubstr("no GPU cuda:1000: this host has "));
    EXPECT_THAT(text, HasSubstr("CUDA_VISIBLE_DEVICES"));
  } else {
    EXPECT_THAT(text, HasSubstr("run.backend=cpu"));
  }
}

// Of few bytes, of an odd number, from places that are not aligned, and around the size from which
// the copy engine does it.
TEST_F(CudaDeviceTest, CopiesOfAllSizesToTheHost) {
  const auto stream = device_->make_stream("copies");
  constexpr int64_t kBytes = 3 * (16 << 10);
  std::vector<uint8_t> bytes(kBytes);
  std::iota(bytes.begin(), bytes.end(), uint8_t{7});
  const Tensor device = from_host(*stream, "bytes", bytes, {kBytes});
  for (const int64_t begin : {0, 1, 2, 4, 64}) {
    for (const int64_t size : {1, 3, 4, 8, 1023, 16383, 16384, 16385, 20000}) {
      const Tensor host = Tensor::host(*device_, "bytes", {kBytes}, DType::U8);
      std::fill_n(host.data<uint8_t>(), kBytes, uint8_t{0});
      const int64_t to = 2 * begin + 1;
      stream->copy(host.rows(to, to + size), device.rows(begin, begin + size));
      stream->synchronize();
      std::vector<uint8_t> want(kBytes, 0);
      std::copy_n(bytes.begin() + begin, size, want.begin() + to);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), host.data<uint8_t>()))
          << size << " bytes from " << begin;
    }
  }
}

TEST_F(CudaDeviceTest, IsNamedAndSized) {
  EXPECT_EQ(device_->kind(), DeviceKind::Cuda);
  EXPECT_THAT(device_->name(), HasSubstr(" (cuda:0)"));
  EXPECT_GT(device_->free_bytes(), 0);
  EXPECT_LE(device_->free_bytes(), device_->total_bytes());
}

TEST_F(CudaDeviceTest, CopiesThereAndBack) {
  const std::vector<float> values = counting(kMany);
  const Tensor tensor = from_host(*stream_, "x", values, {kMany});
  EXPECT_FALSE(tensor.on_host());
  EXPECT_EQ(read_back<float>(*stream_, tensor), values);
}

TEST_F(CudaDeviceTest, CopiesBetweenItsTensorsAndSetsToZero) {
  const std::vector<float> values = counting(1000);
  const Tensor from = from_host(*stream_, "from", values, {1000});
  const Tensor to = Tensor::empty(*stream_, "to", {10, 100}, DType::F32);
  stream_->copy(to, from);
  stream_->zero(from.rows(500, 1000));
  EXPECT_EQ(read_back<float>(*stream_, to), values);
  const std::vector<float> halved = read_back<float>(*stream_, from);
  EXPECT_EQ(halved[499], 499);
  EXPECT_EQ(halved[500], 0);
  EXPECT_EQ(halved[999], 0);
}

TEST_F(CudaDeviceTest, TensorsMayBeEmpty) {
  const Tensor empty = Tensor::empty(*stream_, "empty", {0, 7}, DType::F32);
  stream_->zero(empty);
  stream_->copy(empty, empty);
  EXPECT_TRUE(read_back<float>(*stream_, empty).empty());
}

TEST_F(CudaDeviceTest, RefusesCopiesOfUnequalTensors) {
  const Tensor x = Tensor::empty(*stream_, "x", {4}, DType::F32);
  const Tensor y = Tensor::empty(*stream_, "y", {4}, DType::I32);
  const Tensor z = Tensor::empty(*stream_, "z", {5}, DType::F32);
  EXPECT_THAT(error_of([&] { stream_->copy(y, x); }).second,
              HasSubstr("copy of [4] f32 to [4] i32"));
  EXPECT_THAT(error_of([&] { stream_->copy(z, x); }).second,
              HasSubstr("copy of [4] f32 to [5] f32"));
}

TEST_F(CudaDeviceTest, RefusesStreamsOfOtherDevices) {
  const auto [code, text] = error_of([&] { device_->allocate(*cpu_stream_, "x", 4); });
  EXPECT_EQ(code, ExitCode::Internal);
  EXPECT_THAT(text, HasSubstr("stream 'cpu' is of cpu, not of "));
  EXPECT_THAT(error_of([&] { enqueue_cpu(*stream_, [] {}); }).second,
              HasSubstr("stream 'first' is not a CPU stream"));
}

TEST_F(CudaDeviceTest, AStreamWaitsForAnother) {
  const std::vector<float> values = counting(kMany);
  const Tensor result = Tensor::host(*device_, "result", {kMany}, DType::F32);
  const Tensor first = Tensor::empty(*stream_, "first", {kMany}, DType::F32);
  const Tensor middle = Tensor::empty(*stream_, "middle", {kMany}, DType::F32);
  const Tensor source = from_host(*stream_, "source", values, {kMany});
  stream_->zero(middle);
  stream_->synchronize();
  Gate gate(*cpu_stream_);
  stream_->wait(cpu_stream_->record());
  stream_->copy(first, source);
  stream_->copy(middle, first);
  other_->wait(stream_->record());
  other_->copy(result, middle);
  const Event done = other_->record();
  EXPECT_FALSE(done.ready());
  gate.open();
  done.wait_host();
  EXPECT_TRUE(done.ready());
  const float* data = result.data<float>();
  EXPECT_EQ(std::vector<float>(data, data + kMany), values);
}

// Memory that `other_` still reads is released by its owner, which then fills new memory of the
// same size: without the hold, that would be the memory being read.
TEST_F(CudaDeviceTest, MemoryIsNotReusedWhileACopyReadsIt) {
  const std::vector<float> values = counting(kMany);
  const Tensor result = Tensor::host(*device_, "result", {kMany}, DType::F32);
  Tensor tensor = from_host(*stream_, "x", values, {kMany});
  Gate gate(*cpu_stream_);
  other_->wait(stream_->record());
  other_->wait(cpu_stream_->record());
  other_->copy(result, tensor);
  tensor = Tensor();
  const Tensor next = Tensor::empty(*stream_, "next", {kMany}, DType::F32);
  stream_->zero(next);
  gate.open();
  other_->synchronize();
  const float* data = result.data<float>();
  EXPECT_EQ(std::vector<float>(data, data + kMany), values);
}

TEST_F(CudaDeviceTest, HeldMemoryIsNotReusedBeforeTheHolderIsDone) {
  const std::vector<float> values = counting(kMany);
  const Tensor result = Tensor::host(*device_, "result", {kMany}, DType::F32);
  Tensor tensor = from_host(*stream_, "x", values, {kMany});
  Gate gate(*cpu_stream_);
  other_->wait(stream_->record());
  other_->wait(cpu_stream_->record());
  // Held first and used later: the hold counts until the release.
  other_->hold(tensor);
  const Tensor copy = Tensor::empty(*other_, "copy", {kMany}, DType::F32);
  other_->copy(copy, tensor);
  other_->copy(result, copy);
  tensor = Tensor();
  const Tensor next = Tensor::empty(*stream_, "next", {kMany}, DType::F32);
  stream_->zero(next);
  const Event zeroed = stream_->record();
  EXPECT_FALSE(zeroed.ready());  // the release made the owner wait for the holder
  gate.open();
  other_->synchronize();
  zeroed.wait_host();
  const float* data = result.data<float>();
  EXPECT_EQ(std::vector<float>(data, data + kMany), values);
}

TEST_F(CudaDeviceTest, MemoryOutlivesItsStream) {
  const std::vector<float> values = counting(1000);
  std::unique_ptr<Stream> brief = device_->make_stream("brief");
  Tensor tensor = from_host(*brief, "x", values, {1000});
  other_->wait(brief->record());
  brief.reset();
  EXPECT_EQ(read_back<float>(*other_, tensor), values);
  tensor = Tensor();
  other_->synchronize();
}

TEST_F(CudaDeviceTest, WaitsForHostWorkWithoutBlockingTheHost) {
  const Tensor source = Tensor::host(*device_, "source", {1000}, DType::F32);
  // On the device: the driver makes copies between host memories wait on the host.
  const Tensor target = Tensor::empty(*stream_, "target", {1000}, DType::F32);
  Gate gate(*cpu_stream_);
  enqueue_cpu(*cpu_stream_, [source] {
    for (int i = 0; i < 1000; ++i) source.data<float>()[i] = static_cast<float>(i);
  });
  stream_->wait(cpu_stream_->record());
  stream_->copy(target, source);
  const Event done = stream_->record();
  EXPECT_FALSE(done.ready());
  gate.open();
  done.wait_host();
  EXPECT_EQ(read_back<float>(*stream_, target), counting(1000));
}

TEST_F(CudaDeviceTest, ManyHostEventsInARow) {
  const Tensor value = Tensor::host(*device_, "value", {1}, DType::I32);
  const Tensor seen = Tensor::empty(*stream_, "seen", {100}, DType::I32);
  for (int i = 0; i < 100; ++i) {
    enqueue_cpu(*cpu_stream_, [value, i] { *value.data<int32_t>() = i; });
    stream_->wait(cpu_stream_->record());
    stream_->copy(seen.rows(i, i + 1), value);
    cpu_stream_->wait(stream_->record());  // the value is read before it changes
  }
  const std::vector<int32_t> values = read_back<int32_t>(*stream_, seen);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], i);
}

TEST_F(CudaDeviceTest, TheErrorOfHostWorkArrivesAtTheHost) {
  {
    Gate gate(*cpu_stream_);
    enqueue_cpu(*cpu_stream_, [] { fail(ExitCode::Storage, "the disk is full"); });
    stream_->wait(cpu_stream_->record());
  }
  const auto expected = std::pair(ExitCode::Storage, std::string("the disk is full"));
  EXPECT_EQ(error_of([&] { stream_->record().wait_host(); }), expected);
  EXPECT_EQ(error_of([&] { stream_->synchronize(); }), expected);
  const Event failed = cpu_stream_->record();
  EXPECT_EQ(error_of([&] { failed.wait_host(); }), expected);
  EXPECT_EQ(error_of([&] { other_->wait(failed); }), expected);
}

TEST_F(CudaDeviceTest, ACpuStreamWaitsForTheGpu) {
  const std::vector<float> values = counting(kMany);
  const Tensor tensor = from_host(*stream_, "x", values, {kMany});
  const Tensor host = Tensor::host(*device_, "host", {kMany}, DType::F32);
  stream_->copy(host, tensor);
  cpu_stream_->wait(stream_->record());
  double last = 0;
  enqueue_cpu(*cpu_stream_, [host, &last] { last = host.data<float>()[kMany - 1]; });
  cpu_stream_->synchronize();
  EXPECT_EQ(last, values.back());
}

TEST_F(CudaDeviceTest, AnEventForTheHostIsReadyAfterTheWorkBeforeIt) {
  const std::vector<float> values = counting(kMany);
  const Tensor tensor = from_host(*stream_, "x", values, {kMany});
  const Tensor host = Tensor::host(*device_, "host", {kMany}, DType::F32);
  Gate gate(*cpu_stream_);
  stream_->wait(cpu_stream_->record());
  stream_->copy(host, tensor);
  const Event copied = stream_->record_for_host();
  EXPECT_FALSE(copied.ready());
  gate.open();
  copied.wait_host();
  EXPECT_TRUE(copied.ready());
  EXPECT_EQ(host.data<float>()[kMany - 1], values.back());

  // A stream of another kind may wait for it, too, and errors before it arrive.
  cpu_stream_->wait(stream_->record_for_host());
  cpu_stream_->synchronize();
  enqueue_cpu(*cpu_stream_, [] { fail(ExitCode::Storage, "the disk is full"); });
  stream_->wait(cpu_stream_->record());
  const auto expected = std::pair(ExitCode::Storage, std::string("the disk is full"));
  EXPECT_EQ(error_of([&] { stream_->record_for_host().wait_host(); }), expected);
}

TEST_F(CudaDeviceTest, PinnedMemoryIsReusedWhenItsCopiesAreDone) {
  const Tensor target = Tensor::empty(*stream_, "target", {kMebi}, DType::U8);
  Gate gate(*cpu_stream_);
  stream_->wait(cpu_stream_->record());
  Tensor pinned = Tensor::host(*device_, "pinned", {kMebi}, DType::U8);
  const void* address = pinned.raw();
  stream_->copy(target, pinned);
  pinned = Tensor();
  // The copy has not run: its memory is not handed out.
  Tensor second = Tensor::host(*device_, "pinned", {kMebi}, DType::U8);
  const void* second_address = second.raw();
  EXPECT_NE(second_address, address);
  second = Tensor();
  gate.open();
  stream_->synchronize();
  const Tensor third = Tensor::host(*device_, "pinned", {kMebi}, DType::U8);
  const Tensor fourth = Tensor::host(*device_, "pinned", {kMebi}, DType::U8);
  EXPECT_EQ(std::set({third.raw(), fourth.raw()}),
            std::set({const_cast<void*>(address), const_cast<void*>(second_address)}));
}

TEST_F(CudaDeviceTest, PinnedMemoryOfAlmostEqualSizeIsShared) {
  Tensor tensor = Tensor::host(*device_, "x", {kMebi - 100}, DType::U8);
  const void* address = tensor.raw();
  tensor = Tensor();
  EXPECT_EQ(Tensor::host(*device_, "x", {kMebi}, DType::U8).raw(), address);
}

TEST_F(CudaDeviceTest, NewMemoryIsPoisonedOnRequest) {
  device_->set_poison_memory(true);
  const auto is_nan = ::testing::Truly([](float value) { return std::isnan(value); });
  const Tensor tensor = Tensor::empty(*stream_, "x", {1001}, DType::F32);
  EXPECT_THAT(read_back<float>(*stream_, tensor), Each(is_nan));
  const Tensor host = Tensor::host(*device_, "host", {1001}, DType::F32);
  EXPECT_THAT(std::vector<float>(host.data<float>(), host.data<float>() + 1001), Each(is_nan));
}

TEST_F(CudaDeviceTest, LedgersCountByName) {
  using Usage = MemoryLedger::Usage;
  const int64_t before = device_->memory().current();
  const int64_t pinned_before = device_->pinned_memory().current();
  {
    const Tensor tensor = Tensor::empty(*stream_, "weights", {1000}, DType::F32);
    const Tensor host = Tensor::host(*device_, "staging area", {500}, DType::F32);
    EXPECT_EQ(device_->memory().current(), before + 4000);
    EXPECT_EQ(device_->pinned_memory().current(), pinned_before + 2000);
    EXPECT_THAT(device_->memory().table(),
                Contains(AllOf(Field(&Usage::name, "weights"), Field(&Usage::current, 4000))));
    EXPECT_THAT(device_->pinned_memory().table(),
                Contains(AllOf(Field(&Usage::name, "staging area"), Field(&Usage::current, 2000))));
  }
  EXPECT_EQ(device_->memory().current(), before);
  EXPECT_EQ(device_->pinned_memory().current(), pinned_before);
  EXPECT_GE(device_->memory().peak(), before + 4000);
}

TEST_F(CudaDeviceTest, TooLargeARequestNamesItAndWhatIsHeld) {
  const Tensor held = Tensor::empty(*stream_, "expert weights", {64 * kMebi}, DType::U8);
  const int64_t bytes = 2 * device_->total_bytes();
  const auto [code, text] =
      error_of([&] { Tensor::empty(*stream_, "huge activations", {bytes}, DType::U8); });
  EXPECT_EQ(code, ExitCode::Resource);
  EXPECT_THAT(text, HasSubstr(concat("'huge activations' needs ", bytes, " bytes")));
  EXPECT_THAT(text, HasSubstr(device_->name()));
  EXPECT_THAT(text, HasSubstr("64 MiB  expert weights"));
  EXPECT_THAT(text, HasSubstr("Lower the micro-batch"));
  // The device goes on.
  const std::vector<float> values = counting(10);
  EXPECT_EQ(read_back<float>(*stream_, from_host(*stream_, "x", values, {10})), values);
}

}  // namespace
}  // namespace ferry
