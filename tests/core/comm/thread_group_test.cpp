#include "core/comm/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "core/device.h"
#include "tests/core/comm/group_checks.h"
#include "tests/support/error_of.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;

// Each rank has a device and a stream of its own, as a process has.
struct Rank {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream("rank");
};

class ThreadGroups : public ::testing::TestWithParam<std::tuple<int, GroupCheck, DType>> {};

TEST_P(ThreadGroups, AgreeWithTheReference) {
  const auto& [size, check, dtype] = GetParam();
  run_ranks(size, [&, dtype = dtype](Group& group, Control&) {
    Rank rank;
    check.run(group, *rank.stream, dtype);
  });
}

std::string instance_name(const ::testing::TestParamInfo<ThreadGroups::ParamType>& info) {
  const auto& [size, check, dtype] = info.param;
  return concat(check_name(check, dtype), "_x", size);
}

INSTANTIATE_TEST_SUITE_P(All, ThreadGroups,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::ValuesIn(group_checks()),
                                            ::testing::ValuesIn(kAllDTypes)),
                         instance_name);

TEST(ThreadGroup, SumsInRankOrder) {
  // (1e8 + 1) + -1e8 is 0 in float32, 1e8 + -1e8 + 1 is 1.
  const float values[] = {1e8f, 1.0f, -1e8f, 1.0f};
  run_ranks(4, [&](Group& group, Control&) {
    Rank rank;
    const Tensor x = from_host(*rank.stream, "x", std::vector<float>{values[group.rank()]}, {1});
    group.all_reduce(*rank.stream, x, ReduceOp::Sum);
    EXPECT_EQ(read_back<float>(*rank.stream, x)[0], 1.0f);
  });
}

TEST(ThreadGroup, AFailingRankEndsTheWaitsOfTheOthers) {
  const std::string text = error_of(ExitCode::Data, [] {
    run_ranks(3, [](Group& group, Control&) {
      Rank rank;
      if (group.rank() == 1) fail(ExitCode::Data, "a bad token");
      const Tensor x = rank_tensor(*rank.stream, {1}, DType::F32, group.rank());
      group.all_reduce(*rank.stream, x, ReduceOp::Sum);
      const std::string own = error_of(ExitCode::Lost, [&] { rank.stream->synchronize(); });
      EXPECT_THAT(own, HasSubstr(concat("all_reduce sum on group world rank ", group.rank(),
                                        "/3 of 4 bytes")));
      EXPECT_THAT(own, HasSubstr("rank 1 failed: a bad token"));
    });
  });
  EXPECT_EQ(text, "a bad token");
}

TEST(ThreadGroup, APeerThatNeverComesIsLost) {
  const auto body = [](Group& group, Control&) {
    if (group.rank() == 1) return;
    Rank rank;
    const Tensor x = rank_tensor(*rank.stream, {2}, DType::F32, 0);
    group.all_reduce(*rank.stream, x, ReduceOp::Max);
    rank.stream->synchronize();
  };
  EXPECT_EQ(error_of(ExitCode::Lost, [&] { run_ranks(2, body, 0.05); }),
            "communication hangs: all_reduce max on group world rank 0/2 of 8 bytes waited 0.05 s, "
            "which is the limit; not there: 1");
}

TEST(ThreadGroup, AMessageWithoutReceiverIsLost) {
  const auto body = [](Group& group, Control&) {
    if (group.rank() == 1) return;
    Rank rank;
    group.send(*rank.stream, rank_tensor(*rank.stream, {2}, DType::F32, 0), 1);
    rank.stream->synchronize();
  };
  EXPECT_THAT(error_of(ExitCode::Lost, [&] { run_ranks(2, body, 0.05); }),
              HasSubstr("send on group world rank 0/2 of 8 bytes waited"));
}

TEST(ThreadGroup, DifferentCallsAreNamed) {
  const auto body = [](Group& group, Control&) {
    Rank rank;
    const Tensor x = rank_tensor(*rank.stream, {2 + group.rank()}, DType::F32, 0);
    group.all_reduce(*rank.stream, x, ReduceOp::Sum);
    rank.stream->synchronize();
  };
  try {
    run_ranks(2, body);
    FAIL() << "no error";
  } catch (const Error& error) {  // the rank that came last gets it as it is, the other as Lost
    EXPECT_THAT(error.what(), HasSubstr("ranks of a group make different calls"));
    EXPECT_THAT(error.what(), HasSubstr("'all_reduce sum of 2 f32'"));
    EXPECT_THAT(error.what(), HasSubstr("'all_reduce sum of 3 f32'"));
  }
}

TEST(ThreadGroup, CountsThatDisagreeAreNamed) {
  const auto body = [](Group& group, Control&) {
    Rank rank;
    const std::vector<int64_t> send(2, 1);
    const std::vector<int64_t> receive{1, group.rank() == 0 ? 2 : 1};
    const Tensor in = unwritten(*rank.stream, {3}, DType::I32);
    const Tensor out = unwritten(*rank.stream, {2}, DType::I32);
    group.all_to_all(*rank.stream, in, receive, out, send);
    rank.stream->synchronize();
  };
  try {
    run_ranks(2, body);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("all_to_all: rank 1 sends 1 rows to rank 0, which expects 2"));
  }
}

TEST(ThreadGroup, RefusesWrongArguments) {
  run_ranks(2, [](Group& group, Control&) {
    Rank rank;
    Stream& stream = *rank.stream;
    const Tensor x = unwritten(stream, {2}, DType::F32);
    const std::vector<int64_t> one{1}, two{2, 1}, negative{-1, 1};
    const auto refusal = [](const std::function<void()>& call) {
      return error_of(ExitCode::Internal, call);
    };
    EXPECT_THAT(refusal([&] { group.send(stream, x, 2); }), HasSubstr("world has no rank 2"));
    EXPECT_THAT(refusal([&] { group.receive(stream, x, -1); }), HasSubstr("has no rank -1"));
    EXPECT_THAT(refusal([&] { group.broadcast(stream, x, 2); }), HasSubstr("has no rank 2"));
    EXPECT_THAT(refusal([&] { group.all_gather(stream, x, x); }), HasSubstr("all_gather of [2]"));
    EXPECT_THAT(refusal([&] { group.reduce_scatter(stream, x, x); }),
                HasSubstr("reduce_scatter of [2]"));
    EXPECT_THAT(refusal([&] { group.all_to_all(stream, x, one, x, one); }),
                HasSubstr("a count for each of 2 ranks"));
    EXPECT_THAT(refusal([&] { group.all_to_all(stream, x, two, x, two); }),
                HasSubstr("counts exceed [2]"));
    EXPECT_THAT(refusal([&] { group.all_to_all(stream, x, negative, x, negative); }),
                HasSubstr("-1 rows"));
  });
}

TEST(ThreadControl, GathersBroadcastsAndMeets) {
  run_ranks(4, [](Group&, Control& control) {
    EXPECT_EQ(control.size(), 4);
    for (int root = 0; root < 4; ++root) {
      const std::string own = "text of " + std::to_string(control.rank());
      const auto texts = control.gather(own, root, "greetings");
      if (control.rank() == root)
        EXPECT_EQ(texts,
                  (std::vector<std::string>{"text of 0", "text of 1", "text of 2", "text of 3"}));
      else
        EXPECT_TRUE(texts.empty());
      control.barrier("between");
      EXPECT_EQ(control.broadcast(own, root, "word"), concat("text of ", root));
    }
  });
}

// Another thread of each rank has a control plane that does not meet the first one's calls.
TEST(ThreadControl, AnotherOneIsApart) {
  ThreadWorld world(3, 60);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&world, rank] {
      const auto second = world.make_control(rank, "second");
      EXPECT_EQ(second->rank(), rank);
      EXPECT_EQ(second->size(), 3);
      std::thread beside([&] {
        for (int i = 0; i < 20; ++i)
          EXPECT_EQ(second->broadcast(concat("second ", rank), 1, "word"), "second 1");
      });
      for (int i = 0; i < 10; ++i)
        EXPECT_EQ(world.control(rank).broadcast(concat("first ", rank), 2, "word"), "first 2");
      beside.join();
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST(ThreadControl, APeerThatNeverComesIsLost) {
  const auto body = [](Group&, Control& control) {
    if (control.rank() == 0) control.barrier("start of step 3");
  };
  EXPECT_THAT(error_of(ExitCode::Lost, [&] { run_ranks(2, body, 0.05); }),
              HasSubstr("barrier 'start of step 3' on rank 0/2 waited 0.05 s"));
}

}  // namespace
}  // namespace ferry::testing
