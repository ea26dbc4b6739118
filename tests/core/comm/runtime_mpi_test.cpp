#include "core/comm/runtime.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "core/comm/nccl_group.h"
#include "core/device.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {
namespace {

class RuntimeMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (mpi_runtime().size() == 1) GTEST_SKIP() << "needs mpirun";
  }
  Runtime& runtime() { return mpi_runtime(); }
};

TEST_F(RuntimeMpi, ControlGathersAndBroadcasts) {
  Control& control = runtime().control();
  for (int root = 0; root < control.size(); ++root) {
    const std::string own(static_cast<size_t>(3 * control.rank()), 'x');  // empty on rank 0
    const auto texts = control.gather(own, root, "texts");
    ASSERT_EQ(texts.size(), control.rank() == root ? static_cast<size_t>(control.size()) : 0u);
    for (size_t rank = 0; rank < texts.size(); ++rank) EXPECT_EQ(texts[rank].size(), 3 * rank);
    control.barrier("between");
    EXPECT_EQ(control.broadcast(own, root, "word").size(), static_cast<size_t>(3 * root));
  }
}

TEST_F(RuntimeMpi, KnowsItsHost) {
  EXPECT_GE(runtime().local_rank(), 0);
  EXPECT_LT(runtime().local_rank(), runtime().local_size());
  EXPECT_LE(runtime().local_size(), runtime().size());
  EXPECT_FALSE(runtime().host_name().empty());
}

// As MPI does to a rank that is gone.
TEST_F(RuntimeMpi, AWriteToSomebodyWhoIsGoneIsAnError) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  EXPECT_EQ(write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  close(ends[1]);
}

TEST_F(RuntimeMpi, NcclNeedsAGpu) {
  const auto cpu = make_cpu_device();
  try {
    runtime().world_nccl_group(*cpu);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Resource);
    const std::string text = error.what();
    EXPECT_NE(text.find(nccl_available() ? "NCCL needs a GPU, not cpu" : "-DFERRY_NCCL=ON"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(nccl_version().empty(), !nccl_available());
}

}  // namespace
}  // namespace ferry::testing
