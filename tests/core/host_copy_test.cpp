#include "core/host_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/stream_cpu.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using HostCopy = CpuTest;

TEST_F(HostCopy, GoesThereAndBack) {
  const std::vector<int64_t> values{1, -2, int64_t{1} << 40, 4, 5, 6};
  const Tensor tensor = from_host(stream(), "t", values, {2, 3});
  EXPECT_EQ(tensor.shape(), (Shape{2, 3}));
  EXPECT_EQ(tensor.dtype(), DType::I64);
  EXPECT_EQ(read_back<int64_t>(stream(), tensor), values);
  EXPECT_THAT(read_back<int64_t>(stream(), tensor.rows(1, 2)), ElementsAre(4, 5, 6));
  EXPECT_TRUE(read_back<int64_t>(stream(), tensor.rows(2, 2)).empty());
}

TEST_F(HostCopy, ReadsAfterTheWorkEnqueuedBefore) {
  const Tensor tensor = from_host(stream(), "t", std::vector<float>{0}, {1});
  for (int i = 0; i < 100; ++i) enqueue_cpu(stream(), [tensor] { *tensor.data<float>() += 1; });
  EXPECT_EQ(read_back<float>(stream(), tensor)[0], 100);
}

TEST_F(HostCopy, ReadsEveryDtypeAsDouble) {
  const auto expect_one_and_two = [&]<class T>(std::vector<T> values) {
    const Tensor tensor = from_host(stream(), "t", values, {2});
    EXPECT_THAT(read_back_as_double(stream(), tensor), ElementsAre(1.0, 2.0))
        << name_of(tensor.dtype());
  };
  expect_one_and_two(std::vector<float>{1, 2});
  expect_one_and_two(std::vector<double>{1, 2});
  expect_one_and_two(std::vector<BFloat16>{BFloat16(1.0f), BFloat16(2.0f)});
  expect_one_and_two(std::vector<int32_t>{1, 2});
  expect_one_and_two(std::vector<int64_t>{1, 2});
  expect_one_and_two(std::vector<uint8_t>{1, 2});
}

TEST_F(HostCopy, RefusesWrongTypesAndCounts) {
  const Tensor tensor = from_host(stream(), "t", std::vector<float>{1, 2}, {2});
  EXPECT_THAT([&] { read_back<int32_t>(stream(), tensor); },
              ThrowsMessage<Error>(HasSubstr("tensor is f32")));
  EXPECT_THAT(
      [&] {
        from_host(stream(), "t", std::vector<float>{1, 2}, {3});
      },
      ThrowsMessage<Error>(HasSubstr("2 elements for shape [3]")));
}

TEST_F(HostCopy, RethrowsTheErrorOfTheStream) {
  const Tensor tensor = from_host(stream(), "t", std::vector<float>{1}, {1});
  enqueue_cpu(stream(), [] { fail(ExitCode::Numerical, "broken"); });
  EXPECT_THAT([&] { read_back<float>(stream(), tensor); }, ThrowsMessage<Error>("broken"));
}

}  // namespace
}  // namespace ferry::testing
