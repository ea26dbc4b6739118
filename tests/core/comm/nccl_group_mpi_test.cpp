#include "core/comm/nccl_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "core/device.h"
#include "tests/core/comm/group_checks.h"
#include "tests/support/error_of.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// One communicator for all tests: making one takes long.
class NcclGroups : public ::testing::TestWithParam<std::tuple<GroupCheck, DType>> {
 protected:
  static void SetUpTestSuite() {
    if (num_cuda_devices() < mpi_runtime().local_size()) return;
    device_ = make_cuda_device(mpi_runtime().local_rank());
    group_ = mpi_runtime().world_nccl_group(*device_);
  }
  static void TearDownTestSuite() {
    group_.reset();
    device_.reset();
  }
  void SetUp() override {
    if (!group_) GTEST_SKIP() << "fewer GPUs than ranks";
  }
  static inline std::unique_ptr<Device> device_;
  static inline std::unique_ptr<Group> group_;
};

TEST_P(NcclGroups, AgreeWithTheReference) {
  const auto& [check, dtype] = GetParam();
  const auto stream = device_->make_stream("rank");
  check.run(*group_, *stream, dtype);
}

std::string instance_name(const ::testing::TestParamInfo<NcclGroups::ParamType>& info) {
  return check_name(std::get<0>(info.param), std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, NcclGroups,
                         ::testing::Combine(::testing::ValuesIn(group_checks()),
                                            ::testing::ValuesIn(kAllDTypes)),
                         instance_name);

TEST(NcclGroup, HasAVersion) {
  EXPECT_TRUE(nccl_available());
  EXPECT_THAT(nccl_version(), MatchesRegex("2\\.[0-9]+\\.[0-9]+"));
}

TEST(NcclGroup, NeedsAGpu) {
  const auto cpu = make_cpu_device();
  EXPECT_THAT(error_of(ExitCode::Resource,
                       [&] { make_nccl_group(*cpu, mpi_runtime().control(), "world"); }),
              HasSubstr("group world: NCCL needs a GPU, not cpu"));
}

TEST(NcclGroup, RefusesTwoRanksOnOneGpu) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  if (mpi_runtime().local_size() < 2) GTEST_SKIP() << "needs two ranks on a host";
  const auto device = make_cuda_device(0);
  EXPECT_THAT(error_of(ExitCode::Resource,
                       [&] { make_nccl_group(*device, mpi_runtime().control(), "world"); }),
              AllOf(HasSubstr("group world: ranks 0 and 1 are on one GPU ("),
                    HasSubstr(mpi_runtime().host_name()), HasSubstr("the MPI backend")));
}

}  // namespace
}  // namespace ferry::testing
