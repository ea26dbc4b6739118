#include <gtest/gtest.h>

#include "core/check_cuda.h"
#include "core/ops/gemm.h"
#include "core/ops/gemm_tuning.h"
#include "core/stream_cuda.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

class CapturedGemm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  }
  void TearDown() override { set_gemm_tuning({}); }
};

// A measurement waits for the device, which a capture does not allow.
TEST_F(CapturedGemm, MeasuresNothing) {
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream("test");
  const auto matrix = [&](int64_t size, uint64_t seed) {
    return random_tensor(*stream, {size, size}, DType::BF16, seed);
  };
  int num_measured = 0;
  GemmTuning tuning;
  tuning.unknown = UnknownGemm::Measure;
  tuning.on_measured = [&](const std::string&, const GemmMeasurement&) { ++num_measured; };
  set_gemm_tuning(tuning);
  const Tensor a = matrix(128, 1), b = matrix(128, 2), c = matrix(128, 3),
               expected = matrix(128, 4);
  const Tensor small = matrix(64, 5), small_c = matrix(64, 6);
  gemm(*stream, small_c, small, Transpose::No, small, Transpose::Yes);  // makes the workspace
  stream->synchronize();
  EXPECT_EQ(num_measured, 1);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(cuda_handle(*stream), cudaStreamCaptureModeThreadLocal));
  gemm(*stream, c, a, Transpose::No, b, Transpose::Yes);
  CUDA_CHECK(cudaStreamEndCapture(cuda_handle(*stream), &graph));
  EXPECT_EQ(num_measured, 1);
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_CHECK(cudaGraphLaunch(executable, cuda_handle(*stream)));
  gemm(*stream, expected, a, Transpose::No, b, Transpose::Yes);  // the same kind: the same plan
  EXPECT_EQ(num_measured, 1);
  EXPECT_EQ(read_back_as_double(*stream, c), read_back_as_double(*stream, expected));
  CUDA_CHECK(cudaGraphExecDestroy(executable));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace ferry::testing
