#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/device_trace.h"
#include "core/tensor.h"

namespace ferry {
namespace {

TEST(CuptiTrace, SeesFillsAndCopiesWithinTheDevice) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream("test");
  const Tensor a = Tensor::empty(*stream, "test", {1 << 22}, DType::F32);
  const Tensor b = Tensor::empty(*stream, "test", {1 << 22}, DType::F32);
  stream->zero(a);  // before the trace
  stream->synchronize();
  for (int round = 0; round < 2; ++round) {
    const auto trace = start_device_trace();
    stream->zero(a);
    for (int i = 0; i < 3; ++i) stream->copy(b, a);
    stream->synchronize();
    const DeviceActivity activity = trace->stop();
    int64_t fills = 0, copies = 0;
    for (const DeviceActivity::Work& work : activity.work) {
      if (work.name == "fill") fills = work.calls;
      if (work.name == "copy within the device") copies = work.calls;
      EXPECT_GT(work.seconds, 0) << work.name;
    }
    EXPECT_EQ(fills, 1);
    EXPECT_EQ(copies, 3);
    EXPECT_GT(activity.busy_seconds, 0);
  }
}

}  // namespace
}  // namespace ferry
