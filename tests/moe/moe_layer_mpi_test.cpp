#include <gtest/gtest.h>

#include "tests/moe/layer_over_processes.h"

namespace ferry::testing {
namespace {

class MoeLayerOverProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (mpi_runtime().size() == 1) GTEST_SKIP() << "needs mpirun";
  }
};

TEST_F(MoeLayerOverProcesses, IsThatOfOneRank) {
  const auto device = make_cpu_device();
  const auto group = mpi_runtime().world_group();
  expect_same_over_processes(*device, *group, DType::F64, 1e-12);
}

TEST_F(MoeLayerOverProcesses, IsThatOfOneRankOnGpus) {
  const int gpus = num_cuda_devices();
  if (gpus == 0) GTEST_SKIP() << "no GPU";
  const auto device = make_cuda_device(mpi_runtime().local_rank() % gpus);
  const auto group = mpi_runtime().world_group();
  expect_same_over_processes(*device, *group, DType::F32, 1e-5);
  expect_same_over_processes(*device, *group, DType::BF16, 2e-2);
}

}  // namespace
}  // namespace ferry::testing
