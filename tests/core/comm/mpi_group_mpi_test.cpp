#include "core/comm/mpi_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "core/comm/mesh.h"
#include "core/device.h"
#include "tests/core/comm/group_checks.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The largest number of elements of one MPI call: the usual one, and one that cuts all tensors.
class MpiGroups : public ::testing::TestWithParam<std::tuple<int64_t, GroupCheck, DType>> {
 protected:
  void SetUp() override {
    if (mpi_runtime().size() == 1) GTEST_SKIP() << "needs mpirun";
  }
  std::unique_ptr<Group> group() {
    return make_mpi_group(MPI_COMM_WORLD, "world", {.max_count = std::get<0>(GetParam())});
  }
};

TEST_P(MpiGroups, AgreeWithTheReference) {
  const auto& [max_count, check, dtype] = GetParam();
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("rank");
  check.run(*group(), *stream, dtype);
}

TEST_P(MpiGroups, StageTensorsOfAGpu) {
  const int gpus = num_cuda_devices();
  if (gpus == 0) GTEST_SKIP() << "no GPU";
  const auto& [max_count, check, dtype] = GetParam();
  const auto device = make_cuda_device(mpi_runtime().local_rank() % gpus);
  const auto stream = device->make_stream("rank");
  check.run(*group(), *stream, dtype);
}

std::string instance_name(const ::testing::TestParamInfo<MpiGroups::ParamType>& info) {
  const auto& [max_count, check, dtype] = info.param;
  return check_name(check, dtype) + (max_count < 100 ? "_in_pieces" : "");
}

INSTANTIATE_TEST_SUITE_P(All, MpiGroups,
                         ::testing::Combine(::testing::Values(7, int64_t{1} << 30),
                                            ::testing::ValuesIn(group_checks()),
                                            ::testing::ValuesIn(kAllDTypes)),
                         instance_name);

class MpiJob : public ::testing::Test {
 protected:
  void SetUp() override {
    if (mpi_runtime().size() == 1) GTEST_SKIP() << "needs mpirun";
  }
  Runtime& runtime() { return mpi_runtime(); }
};

// Everybody gets the same bits, and the same in every run of the same layout.
TEST_F(MpiJob, SumsAreRepeatable) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("rank");
  const auto group = runtime().world_group();
  const auto sum = [&] {
    const Tensor x = make_tensor(*stream, {10000}, DType::F32, [&](int64_t i) {
      return 1.0 / (1.0 + static_cast<double>(i) + 0.37 * runtime().rank());
    });
    group->all_reduce(*stream, x, ReduceOp::Sum);
    return read_back<float>(*stream, x);
  };
  const std::vector<float> first = sum();
  for (int round = 0; round < 5; ++round) EXPECT_EQ(sum(), first);
  std::string bits(reinterpret_cast<const char*>(first.data()), first.size() * sizeof(float));
  EXPECT_EQ(runtime().control().broadcast(bits, 0, "bits of rank 0"), bits);
}

TEST_F(MpiJob, APeerThatDoesNotComeIsLost) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("rank");
  const auto group = make_mpi_group(MPI_COMM_WORLD, "dp[0,1]", {.timeout_s = 0.2});
  const Tensor x = rank_tensor(*stream, {6}, DType::F32, runtime().rank());
  if (runtime().rank() == 0) {
    group->all_reduce(*stream, x, ReduceOp::Sum);
    const std::string text = lost([&] { stream->synchronize(); });
    EXPECT_THAT(text, HasSubstr(concat("communication hangs: all_reduce on group dp[0,1] rank 0/",
                                       runtime().size(), " of 24 bytes waited ")));
    EXPECT_THAT(text, AllOf(HasSubstr("the limit is 0.2 s (FERRY_COMM_TIMEOUT_S)"),
                            HasSubstr("why : a rank is gone or stuck"),
                            HasSubstr("try : restart the job")));
    // The group is of no more use, and says so without waiting again.
    group->all_reduce(*stream, x, ReduceOp::Sum);
    EXPECT_EQ(lost([&] { stream->synchronize(); }), text);
  }
  runtime().control().barrier("rank 0 has given up");
  // Comes late, so that MPI can end in order.
  if (runtime().rank() != 0) {
    group->all_reduce(*stream, x, ReduceOp::Sum);
    try {
      stream->synchronize();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Lost);
    }
  }
  runtime().control().barrier("all have given up");
}

TEST_F(MpiJob, ASplitThatNotAllMakeIsLost) {
  const auto group = make_mpi_group(MPI_COMM_WORLD, "world", {.timeout_s = 0.2});
  if (runtime().rank() == 0) {
    EXPECT_THAT(lost([&] { group->split(0, "ep[0]"); }),
                HasSubstr("hangs: split of group world into ep[0] on rank 0 waited "));
  }
  runtime().control().barrier("rank 0 has given up");
}

// A message that is longer than the receiver expects is an error of its stream, not of the process.
TEST_F(MpiJob, AMessageThatDoesNotFitIsAnError) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("rank");
  const auto group = runtime().world_group();
  if (runtime().rank() == 0)
    group->send(*stream, rank_tensor(*stream, {8}, DType::F32, 0), 1);
  else if (runtime().rank() == 1)
    group->receive(*stream, rank_tensor(*stream, {4}, DType::F32, 0), 0);
  if (runtime().rank() == 1) {
    EXPECT_THAT(lost([&] { stream->synchronize(); }), HasSubstr("receive on group world rank 1"));
  } else {
    stream->synchronize();
  }
  runtime().control().barrier("the message is gone");
}

TEST_F(MpiJob, RefusesWrongArguments) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("rank");
  const auto group = runtime().world_group();
  const Tensor x = unwritten(*stream, {2}, DType::F32);
  std::vector<int64_t> too_many(static_cast<size_t>(group->size()), 2);
  std::vector<int64_t> negative(static_cast<size_t>(group->size()), -1);
  EXPECT_THROW(group->send(*stream, x, group->size()), Error);
  EXPECT_THROW(group->receive(*stream, x, -1), Error);
  EXPECT_THROW(group->broadcast(*stream, x, -1), Error);
  EXPECT_THROW(group->all_gather(*stream, x, x), Error);
  EXPECT_THROW(group->reduce_scatter(*stream, x, x), Error);
  EXPECT_THROW(group->all_to_all(*stream, x, {}, x, {}), Error);
  EXPECT_THROW(group->all_to_all(*stream, x, too_many, x, too_many), Error);
  EXPECT_THROW(group->all_to_all(*stream, x, negative, x, negative), Error);
}

// Both ranks of a pair send first: each direction has a thread of its own.
TEST_F(MpiJob, LargeMessagesCrossInBothDirections) {
  const auto device = make_cpu_device();
  const auto out = device->make_stream("out"), in = device->make_stream("in");
  const auto group = runtime().world_group();
  const int rank = runtime().rank(), peer = rank ^ 1;
  if (peer < runtime().size()) {
    constexpr int64_t kNumel = 1 << 18;  // far above what MPI sends without a receiver
    const Tensor sent = rank_tensor(*out, {kNumel}, DType::F32, rank);
    const Tensor received = unwritten(*in, {kNumel}, DType::F32);
    group->send(*out, sent, peer);
    group->receive(*in, received, peer);
    expect_values(
        *in, received, [&](int64_t i) { return rank_value(peer, i); }, "crossing");
    out->synchronize();
  }
}

TEST_F(MpiJob, MeshGroupsAreTheRanksOfEachAxis) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("rank");
  const auto world = runtime().world_group();
  const Mesh mesh(world->size(), {.tensor = 2, .expert = 2});
  const MeshGroups groups(mesh, *world);
  for (const char* axis : {"tp", "pp", "exchange", "dp", "stage", "tied", "edp"}) {
    const Tensor sum = make_tensor(
        *stream, {1}, DType::I32, [&](int64_t) { return static_cast<double>(1 << world->rank()); });
    groups.along(axis).all_reduce(*stream, sum, ReduceOp::Sum);
    int expected = 0;
    for (const int rank : mesh.ranks_along(axis, world->rank())) expected += 1 << rank;
    EXPECT_EQ(read_back<int32_t>(*stream, sum)[0], expected) << axis;
  }
}

}  // namespace
}  // namespace ferry::testing
