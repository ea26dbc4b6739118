#include "core/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
  EXPECT_EQ(graph->num_nodes(), on_cuda() ? 4 : 2) << "two copies, an allocation, a release";
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

TEST_P(GraphTest, HasTheWorkOfStreamsThatTookPart) {
  const auto copies = stream().device().make_stream("copies");
  const Tensor in = make("in"), out = make("out");
  const auto graph = capture(stream(), [&] {
    const Tensor on_host = Tensor::host(stream().device(), "on host", {kSize}, DType::F32);
    copies->wait(stream().record());
    EXPECT_TRUE(copies->is_captured());
    copies->copy(on_host, in);
    copies->copy(out, on_host);
    stream().wait(copies->record());
  });
  EXPECT_FALSE(stream().is_captured());
  EXPECT_FALSE(copies->is_captured());
  // Other work that needs such memory must not get the graph's.
  const Tensor other = Tensor::host(stream().device(), "other", {kSize}, DType::F32);
  std::fill_n(other.data<float>(), kSize, 7.0f);
  for (int time = 0; time < 2; ++time) {
    stream().copy(in, ones());
    graph->launch(stream());
    EXPECT_THAT(values(out), Each(1)) << time;
    stream().zero(in);
    graph->launch(stream());
    EXPECT_THAT(values(out), Each(0)) << time;
  }
  EXPECT_EQ(other.data<float>()[kSize - 1], 7.0f);
}

TEST_P(GraphTest, WorkThatIsNotWaitedForIsRefused) {
  const auto copies = stream().device().make_stream("copies");
  const Tensor out = make("out");
  EXPECT_THAT(
      [&] {
        capture(stream(), [&] {
          copies->wait(stream().record());
          copies->zero(out);
          stream().wait(copies->record());
          copies->zero(out);
        });
      },
      ThrowsMessage<Error>(HasSubstr(on_cuda() ? "cudaStreamEndCapture"
                                               : "does not wait for 1 tasks that its graph has of "
                                                 "stream 'copies'")));
  EXPECT_FALSE(copies->is_captured());
  stream().copy(out, ones());
  EXPECT_THAT(values(out), Each(1));
}

TEST_P(GraphTest, NothingInsideCanBeWaitedForByTheHost) {
  const Tensor out = make("out");
  Event inside;
  const auto graph = capture(stream(), [&] {
    stream().zero(out);
    inside = stream().record();
    EXPECT_THAT([&] { static_cast<void>(inside.ready()); },
                ThrowsMessage<Error>(HasSubstr("its work is recorded, not done")));
    EXPECT_THAT([&] { stream().synchronize(); },
                ThrowsMessage<Error>(HasSubstr("its work is recorded, not done")));
    EXPECT_THAT([&] { stream().stamp(); },
                ThrowsMessage<Error>(HasSubstr("recorded and not done")));
  });
  EXPECT_THAT([&] { inside.wait_host(); },
              ThrowsMessage<Error>(HasSubstr("its work is recorded, not done")));
}

TEST_P(GraphTest, WorkFromBeforeIsNotPartOfIt) {
  if (on_cuda()) GTEST_SKIP() << "what the driver says then differs from version to version";
  const auto copies = stream().device().make_stream("copies");
  const Tensor out = make("out");
  copies->wait(stream().record());  // which zeroes it, too
  copies->zero(out);
  const Event before = copies->record();
  Event inside;
  EXPECT_THAT([&] { capture(stream(), [&] { stream().wait(before); }); },
              ThrowsMessage<Error>(HasSubstr("waits for other work")));
  const auto graph = capture(stream(), [&] { inside = stream().record(); });
  EXPECT_THAT([&] { copies->wait(inside); },
              ThrowsMessage<Error>(HasSubstr("waits for work of a graph")));
  EXPECT_THAT([&] { capture(stream(), [&] { capture(stream(), [] {}); }); },
              ThrowsMessage<Error>(HasSubstr("is captured twice")));
  EXPECT_THAT(
      [&] {
        capture(stream(), [&] {
          const Event first = stream().record();
          capture(*copies, [&] { copies->wait(first); });
        });
      },
      ThrowsMessage<Error>(HasSubstr("waits for work of another graph")));
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
