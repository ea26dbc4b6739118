#include "core/comm/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "core/device.h"
#include "core/stream_cpu.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kLimit = 2;  // to make and to end a communicator takes about a second

// A communicator of one rank, and work of the host that is done when the test says so.
class NcclCommunicators : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    device_ = std::make_unique<CudaDevice>(mpi_runtime().local_rank() % num_cuda_devices());
    stream_ = device_->make_stream("compute");
    comm_ = std::make_unique<NcclCommunicator>(*device_, kLimit);
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    comm_->make("start", [id](ncclComm_t* comm) { return ncclCommInitRank(comm, 1, id, 0); });
    enqueue_cpu(*host_stream_, [opened = opened_.get_future().share()] { opened.wait(); });
    host_work_ = host_stream_->record();
  }
  void TearDown() override {
    open();
    comm_.reset();
  }
  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }
  // Stands in for a collective whose peer does not come: it begins, and does not end.
  void enqueue_collective() {
    comm_->enqueue(*stream_, "all_reduce on group dp[0,1]", {}, [&] {
      stream_->wait(host_work_);
      return ncclSuccess;
    });
  }

  std::promise<void> opened_;
  bool is_open_ = false;
  std::unique_ptr<Device> cpu_ = make_cpu_device();
  std::unique_ptr<Stream> host_stream_ = cpu_->make_stream("host");
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<NcclCommunicator> comm_;
  Event host_work_;
};

TEST_F(NcclCommunicators, ACollectiveThatHangsEndsTheWaitForIt) {
  enqueue_collective();
  const auto expected = AllOf(HasSubstr("communication hangs: all_reduce on group dp[0,1] waited"),
                              HasSubstr("the limit is 2 s (FERRY_COMM_TIMEOUT_S)"));
  EXPECT_THAT(lost([&] { stream_->record().wait_host(); }), expected);
  // Every other wait, too, on whatever thread.
  EXPECT_THAT(lost([&] { stream_->synchronize(); }), expected);
  EXPECT_THAT(lost([&] { enqueue_collective(); }), HasSubstr("the group failed before"));
}

// The time that is spent before the collective begins is not its own.
TEST_F(NcclCommunicators, ACollectiveMayWaitForEarlierWork) {
  const Tensor x = Tensor::empty(*stream_, "x", {4}, DType::F32);
  stream_->zero(x);
  stream_->wait(host_work_);
  comm_->enqueue(*stream_, "all_reduce on group dp[0,1]", {x}, [&] {
    return ncclAllReduce(x.raw(), x.raw(), 4, ncclFloat32, ncclSum, comm_->get(),
                         cuda_handle(*stream_));
  });
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLimit));
    open();
  });
  EXPECT_NO_THROW(stream_->synchronize());
  later.join();
}

TEST_F(NcclCommunicators, WrongUseIsAnInternalError) {
  try {
    comm_->ask("a wrong call", [] { return ncclInvalidArgument; });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Internal);
    EXPECT_THAT(error.what(), HasSubstr("communication failed: a wrong call: NCCL: "));
  }
}

}  // namespace
}  // namespace ferry::testing
