#include "core/comm/mpi_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "core/check.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MpiCall : public ::testing::Test {
 protected:
  void SetUp() override {
    if (mpi_runtime().size() == 1) GTEST_SKIP() << "needs mpirun";
  }
  Runtime& runtime() { return mpi_runtime(); }
};

TEST_F(MpiCall, ErrorsOfMpiSayWhatAndWhy) {
  const std::string text =
      lost([] { check_mpi(MPI_ERR_TRUNCATE, "receive on group pp[0,1] rank 1/2"); });
  EXPECT_THAT(text, AllOf(HasSubstr("communication failed: receive on group pp[0,1] rank 1/2: "),
                          HasSubstr("MPI_ERR_TRUNCATE"), HasSubstr("try : restart the job")));
}

TEST_F(MpiCall, HasADeadline) {
  MpiCommunicator comm(MpiCommunicator::duplicate(MPI_COMM_WORLD));
  EXPECT_EQ(comm.rank(), runtime().rank());
  EXPECT_EQ(comm.size(), runtime().size());
  const auto barrier = [&](MPI_Request* request) { return MPI_Ibarrier(comm.get(), request); };
  if (runtime().rank() == 0) {
    EXPECT_THAT(lost([&] { complete_mpi(barrier, "barrier of the test", 0.1); }),
                AllOf(HasSubstr("communication hangs: barrier of the test waited "),
                      HasSubstr("the limit is 0.1 s (FERRY_COMM_TIMEOUT_S)")));
  }
  runtime().control().barrier("rank 0 has given up");
  if (runtime().rank() != 0) complete_mpi(barrier, "late barrier", 30);
  runtime().control().barrier("all were there");
}

// While an error is on its way, nothing waits for the other ranks.
TEST_F(MpiCall, ACommunicatorIsNotFreedDuringAnError) {
  MPI_Comm kept = MPI_COMM_NULL;
  if (runtime().rank() == 0) {
    EXPECT_THAT(lost([&] {
                  const MpiCommunicator comm(MpiCommunicator::duplicate(MPI_COMM_SELF));
                  kept = comm.get();
                  fail(ExitCode::Lost, "an error");
                }),
                HasSubstr("an error"));
    int size = 0;
    EXPECT_EQ(MPI_Comm_size(kept, &size), MPI_SUCCESS);
    EXPECT_EQ(size, 1);
    MpiCommunicator frees_it(kept);
  }
}

}  // namespace
}  // namespace ferry::testing
