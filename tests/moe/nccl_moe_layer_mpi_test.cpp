#include <gtest/gtest.h>

#include "tests/moe/layer_over_processes.h"

namespace ferry::testing {
namespace {

TEST(MoeLayerOverNccl, IsThatOfOneRank) {
  if (mpi_runtime().size() == 1) GTEST_SKIP() << "needs mpirun";
  if (num_cuda_devices() < mpi_runtime().local_size()) GTEST_SKIP() << "needs a GPU for each rank";
  const auto device = make_cuda_device(mpi_runtime().local_rank());
  const auto group = mpi_runtime().world_nccl_group(*device);
  expect_same_over_processes(*device, *group, DType::F32, 1e-5);
  expect_same_over_processes(*device, *group, DType::BF16, 2e-2);
}

}  // namespace
}  // namespace ferry::testing
