#include "core/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "tests/support/devices.h"

namespace ferry {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class GraphTest : public testing::DeviceTest {
 protected:
  bool on_cuda() const { return GetParam().kind == DeviceKind::Cuda; }
  Tensor make(std::string_view name) {
    const Tensor tensor = Tensor::empty(stream(), name, {kSize}, DType::F32);
    stream().zero(tensor);
    return tensor;
  }
  Tensor ones() { return from_host(stream(), "ones", std::vector<float>(kSize, 1), {kSize}); }
  std::vector<float> values(const Tensor& tensor) { return read_back<float>(stream(), tensor); }

  static constexpr int64_t kSize = 1000;
};

TEST_P(GraphTest, ReplaysItsWorkWithWhatIsInMemoryThen) {
  const Tensor in = make("in"), out = make("out");
  const auto graph = capture(stream(), [&] {
    const Tensor between = Tensor::empty(stream(), "between", {kSize}, DType::F32);
    stream().copy(between, in);
    stream().copy(out, between);
  });
  EXPECT_THAT(values(out), Each(0)) << "recorded, not done";
  if (on_cuda()) {
    EXPECT_EQ(graph->num_nodes(), 4) << "two copies, an allocation, a release";
  }
  const Tensor one = ones();
  for (int time = 0; time < 3; ++time) {
    stream().copy(in, one);
    graph->launch(stream());
    EXPECT_THAT(values(out), Each(1)) << time;
    stream().zero(in);
    graph->launch(stream());
    EXPECT_THAT(values(out), Each(0)) << time;
  }
}

TEST_P(GraphTest, AnErrorOfTheBodyLeavesTheStreamUsable) {
  if (!on_cuda()) GTEST_SKIP() << "the body runs at the launch";
  const Tensor out = make("out");
  EXPECT_THAT(
      [&] {
        capture(stream(), [&] {
          const Tensor between = Tensor::empty(stream(), "between", {kSize}, DType::F32);
          stream().copy(between, out);
          throw std::runtime_error("in the body");
        });
      },
      ThrowsMessage<std::runtime_error>(HasSubstr("in the body")));
  stream().copy(out, ones());
  EXPECT_THAT(values(out), Each(1));
}

TEST_P(GraphTest, WhatIsAllocatedInsideMustEndInside) {
  if (!on_cuda()) GTEST_SKIP() << "tensors of the CPU have no such rule";
  // Never freed: its memory is of a graph that is gone, and the process must not touch it.
  auto* kept = new Tensor;
  EXPECT_THAT(
      [&] {
        capture(stream(), [&] {
          *kept = Tensor::empty(stream(), "kept", {kSize}, DType::F32);
          stream().zero(*kept);
        });
      },
      ThrowsMessage<Error>(HasSubstr("allocates 1 tensors and releases 0")));
  const Tensor out = make("out");
  EXPECT_THAT(values(out), Each(0));
}

TEST_P(GraphTest, TooMuchMemoryIsRefused) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU allocates as ever";
  // In a process of its own: the driver keeps what it had found before it gave up.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto too_much = [&] {
    const int64_t size = 2 * stream().device().total_bytes();
    try {
      const auto graph = capture(
          stream(), [&] { stream().zero(Tensor::empty(stream(), "huge", {size}, DType::U8)); });
      graph->launch(stream());
      stream().synchronize();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(static_cast<int>(error.code()));
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(too_much(), ::testing::ExitedWithCode(static_cast<int>(ExitCode::Resource)),
              "not enough memory on");
}

TEST_P(GraphTest, AnotherStreamIsRefused) {
  if (!on_cuda()) GTEST_SKIP() << "the body names its stream";
  const Tensor out = make("out");
  const auto graph = capture(stream(), [&] { stream().zero(out); });
  const auto other = stream().device().make_stream("other");
  EXPECT_THAT([&] { graph->launch(*other); },
              ThrowsMessage<Error>(HasSubstr("is launched on 'other'")));
}

INSTANTIATE_TEST_SUITE_P(Devices, GraphTest,
                         ::testing::Values(testing::DeviceCase{DeviceKind::Cpu, DType::F32},
                                           testing::DeviceCase{DeviceKind::Cuda, DType::F32}),
                         testing::case_name);

}  // namespace
}  // namespace ferry
