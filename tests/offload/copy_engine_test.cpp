#include "offload/copy_engine.h"

#include <gtest/gtest.h>

#include <future>

#include "core/graph.h"
#include "core/stream_cpu.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

class CopyEngineTest : public DeviceTest {};

TEST_P(CopyEngineTest, BringsBackTheSameBits) {
  CopyEngine engine(device());
  const Tensor x = random_tensor(stream(), {37, 129}, dtype(), 1);
  for (const bool ahead : {false, true}) {
    const auto hosted = engine.to_host(x, stream().record(), "core_attn");
    EXPECT_EQ(hosted->bytes(), x.bytes());
    if (ahead) engine.reload(*hosted, stream());
    EXPECT_EQ(hosted->reloading(), ahead);
    const Tensor back = engine.bring_back(*hosted, stream());
    EXPECT_FALSE(back.same_memory(x));
    EXPECT_EQ(back.shape(), x.shape());
    expect_same_bits(stream(), back, x);
  }
}

// The copy away cannot be done: it waits for an event that comes later.
TEST_P(CopyEngineTest, TakesBackWhatHasNotLeft) {
  MemoryLedger ledger;
  CopyEngine engine(device(), &ledger, /*takes_back=*/true);
  const auto slow = make_cpu_device();
  const auto other = slow->make_stream("other");
  std::promise<void> may_leave;
  enqueue_cpu(*other, [&] { may_leave.get_future().wait(); });
  const Tensor x = random_tensor(stream(), {100}, dtype(), 1);
  stream().synchronize();
  const auto hosted = engine.to_host(x, other->record(), "core_attn");
  EXPECT_EQ(ledger.current(), x.bytes());
  engine.reload(*hosted, stream());
  EXPECT_EQ(ledger.current(), x.bytes());
  EXPECT_TRUE(engine.bring_back(*hosted, stream()).same_memory(x));
  EXPECT_EQ(ledger.current(), 0);
  may_leave.set_value();
  EXPECT_EQ(engine.traffic().at("core_attn").h2d_bytes, 0);
  // One that has left is copied.
  const auto left = engine.to_host(x, stream().record(), "core_attn");
  static_cast<void>(engine.traffic());  // waits for the copy
  EXPECT_FALSE(engine.bring_back(*left, stream()).same_memory(x));
  EXPECT_EQ(engine.traffic().at("core_attn").h2d_bytes, x.bytes());
}

TEST_P(CopyEngineTest, CountsBytesByModuleUntilToldToBeginAgain) {
  CopyEngine engine(device());
  const Tensor x = random_tensor(stream(), {100}, dtype(), 1);
  const auto a = engine.to_host(x, stream().record(), "core_attn");
  const auto b = engine.to_host(x, stream().record(), "moe_act");
  engine.bring_back(*b, stream());
  TrafficByModule traffic = engine.traffic();
  EXPECT_EQ(traffic.at("core_attn").d2h_bytes, x.bytes());
  EXPECT_EQ(traffic.at("core_attn").h2d_bytes, 0);
  EXPECT_EQ(traffic.at("moe_act").h2d_bytes, x.bytes());
  EXPECT_GE(traffic.at("moe_act").exposed_s, 0);
  engine.start_counting();
  EXPECT_TRUE(engine.traffic().empty());
  engine.bring_back(*a, stream());
  traffic = engine.traffic();
  EXPECT_EQ(traffic.at("core_attn").h2d_bytes, x.bytes());
  EXPECT_EQ(traffic.at("core_attn").d2h_bytes, 0);
}

TEST_P(CopyEngineTest, LetsGoOfDeviceMemoryWhenItIsCopied) {
  CopyEngine engine(device());
  const auto current = [&] {
    for (const auto& usage : device().memory().table())
      if (usage.name == "leaving") return usage.current;
    return int64_t{0};
  };
  Tensor x = Tensor::empty(stream(), "leaving", {1000}, dtype());
  stream().zero(x);
  const auto hosted = engine.to_host(x, stream().record(), "core_attn");
  const int64_t bytes = x.bytes();
  x = Tensor();
  EXPECT_EQ(current(), bytes);  // the engine keeps it until it sees that the copy is done
  engine.join(stream(), *hosted);
  stream().synchronize();
  EXPECT_EQ(current(), 0);
}

TEST_P(CopyEngineTest, AJoinFreesWhatLeftBefore) {
  CopyEngine engine(device());
  std::vector<std::shared_ptr<HostedTensor>> hosted;
  for (int i = 0; i < 4; ++i) {
    const Tensor x = Tensor::empty(stream(), "leaving", {10}, dtype());
    stream().zero(x);
    hosted.push_back(engine.to_host(x, stream().record(), "core_attn"));
  }
  engine.join(stream(), *hosted[2]);
  engine.join(stream(), *hosted[1]);  // is covered
  stream().synchronize();
  for (const auto& usage : device().memory().table()) {
    if (usage.name == "leaving") {
      EXPECT_LE(usage.current, 10 * static_cast<int64_t>(size_of(dtype())));
    }
  }
}

TEST_P(CopyEngineTest, RefusesToReloadTwice) {
  CopyEngine engine(device());
  const Tensor x = random_tensor(stream(), {8}, dtype(), 1);
  const auto hosted = engine.to_host(x, stream().record(), "core_attn");
  engine.reload(*hosted, stream());
  EXPECT_THROW(engine.reload(*hosted, stream()), Error);
  engine.bring_back(*hosted, stream());
  EXPECT_THROW(engine.bring_back(*hosted, stream()), Error);
}

// Small and large buffers are reused at once, under copies both ways.
TEST_P(CopyEngineTest, ManyBuffersInTurnKeepTheirValues) {
  CopyEngine engine(device());
  std::vector<Tensor> expected;
  for (int i = 0; i < 8; ++i)
    expected.push_back(
        random_tensor(stream(), {1 + 997 * i}, dtype(), 10 + static_cast<uint64_t>(i)));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<HostedTensor>> hosted;
    for (const Tensor& x : expected) {
      const Tensor copy = Tensor::empty(stream(), "copy", x.shape(), x.dtype());
      stream().copy(copy, x);
      hosted.push_back(engine.to_host(copy, stream().record(), "core_attn"));
      if (round % 2 == 0) engine.join(stream(), *hosted.back());
    }
    for (size_t i = hosted.size(); i-- > 0;) {
      if (i > 0) engine.reload(*hosted[i - 1], stream());
      const Tensor back = engine.bring_back(*hosted[i], stream());
      if (round % 5 == 4) expect_same_bits(stream(), back, expected[i]);
    }
  }
}

// A graph's copies are counted and done at each launch, with what is in memory then.
TEST_P(CopyEngineTest, IsRecordedInAGraph) {
  MemoryLedger ledger;
  CopyEngine engine(device(), &ledger, /*takes_back=*/true);
  const Tensor in = random_tensor(stream(), {257}, dtype(), 1);
  const Tensor out = Tensor::empty(stream(), "out", in.shape(), in.dtype());
  // Something from before that nobody brought back.
  const auto before = engine.to_host(in, stream().record(), "moe_act");
  engine.settle();
  EXPECT_FALSE(engine.has_copies_under_way());
  engine.start_counting();
  const auto graph = capture(stream(), [&] {
    for (const bool joined : {true, false}) {
      const Tensor copy = Tensor::empty(stream(), "leaving", in.shape(), in.dtype());
      stream().copy(copy, in);
      const auto hosted = engine.to_host(copy, stream().record(), "core_attn");
      engine.release_finished();
      EXPECT_TRUE(engine.has_copies_under_way()) << "nobody can know whether it is done";
      if (joined) engine.join(stream(), *hosted);
      EXPECT_EQ(engine.has_copies_under_way(), !joined);
      engine.reload(*hosted, stream());
      stream().copy(out, engine.bring_back(*hosted, stream()));
      EXPECT_FALSE(engine.has_copies_under_way()) << "compute has waited for it";
    }
  });
  EXPECT_EQ(ledger.current(), 0);
  EXPECT_TRUE(engine.traffic().empty());
  for (int launch = 1; launch <= 3; ++launch) {
    stream().copy(in,
                  random_tensor(stream(), in.shape(), dtype(), 10 + static_cast<uint64_t>(launch)));
    graph->launch(stream());
    engine.count_launch();
    expect_same_bits(stream(), out, in);
    EXPECT_EQ(engine.traffic().at("core_attn").d2h_bytes, launch * 2 * in.bytes());
    EXPECT_EQ(engine.traffic().at("core_attn").h2d_bytes, launch * 2 * in.bytes());
    EXPECT_EQ(engine.traffic().at("core_attn").exposed_s, 0);
  }
  // And goes on as ever.
  expect_same_bits(stream(),
                   engine.bring_back(*engine.to_host(in, stream().record(), "core_attn"), stream()),
                   in);
}

INSTANTIATE_TEST_SUITE_P(Devices, CopyEngineTest, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
