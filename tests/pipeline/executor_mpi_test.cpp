#include "pipeline/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/comm/nccl_group.h"
#include "core/host_copy.h"
#include "tests/pipeline/affine_work.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {
namespace {

class ExecutorMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (runtime().size() == 1) GTEST_SKIP() << "needs mpirun";
  }
  Runtime& runtime() { return mpi_runtime(); }
};

TEST_F(ExecutorMpi, ComputesWhatOneRankDoes) {
  const int size = runtime().size();
  const auto group = runtime().world_group();
  const auto device = make_cpu_device();
  const auto compute = device->make_stream("compute");
  for (const int num_chunks : {1, 3}) {
    PipelineLinks links(*group, *device, num_chunks);
    Executor executor(links, *compute);
    for (const int num_micro : {1, size, 3 * size}) {
      if (num_micro < size && num_chunks > 1) continue;
      const ScheduleShape shape{usual_schedule(num_chunks), size, num_chunks, num_micro};
      AffineWork work(*compute, group->rank(), size, num_chunks, 100);
      executor.run(proved_schedule(shape, group->rank()), kAffineMessage, work);
      compute->synchronize();
      const AffineResult expected = affine_reference(size * num_chunks, num_micro);
      EXPECT_EQ(work.result(), part_of_rank(expected, group->rank(), size));
    }
  }
}

// Passes everything on, on any device, and keeps no memory of the device, as that of messages would
// not be reused then.
class RelayWork final : public StageWork {
 public:
  RelayWork(Stream& compute, const MessageType& message) : compute_(compute), message_(message) {}

  Tensor forward(int, int micro, const Tensor& x) override {
    const Tensor y = x.defined() ? copy(x) : numbers(micro);
    outputs_.push_back(host_copy(y));
    return y;
  }
  Tensor backward(int, int micro, const Tensor& dy) override {
    const Tensor dx = dy.defined() ? copy(dy) : numbers(kGradient + micro);
    gradients_.push_back(host_copy(dx));
    return dx;
  }

  /// Results of this rank's passes, in their order, on the host; after the compute stream was
  /// waited for.
  const std::vector<Tensor>& outputs() const { return outputs_; }
  const std::vector<Tensor>& gradients() const { return gradients_; }

  static constexpr int kGradient = 100;
  static std::vector<float> expected(int first, int64_t numel) {
    std::vector<float> values(static_cast<size_t>(numel));
    std::iota(values.begin(), values.end(), static_cast<float>(1000 * first));
    return values;
  }

 private:
  Tensor numbers(int first) {
    return from_host(compute_, "numbers", expected(first, message_.shape.numel()), message_.shape);
  }
  Tensor copy(const Tensor& x) {
    const Tensor y = Tensor::empty(compute_, "relay", message_.shape, message_.dtype);
    compute_.copy(y, x);
    return y;
  }
  Tensor host_copy(const Tensor& x) {
    const Tensor y = Tensor::host(compute_.device(), "results", message_.shape, message_.dtype);
    compute_.copy(y, x);
    return y;
  }

  Stream& compute_;
  MessageType message_;
  std::vector<Tensor> outputs_, gradients_;
};

const MessageType kSmall{{64, 32}, DType::F32};

void expect_relayed(Group& group, Device& device, const MessageType& message = kSmall) {
  const auto compute = device.make_stream("compute");
  for (const int num_chunks : {1, 2}) {
    PipelineLinks links(group, device, num_chunks);
    Executor executor(links, *compute);
    RelayWork work(*compute, message);
    const RankSchedule schedule = proved_schedule({.kind = usual_schedule(num_chunks),
                                                   .num_ranks = group.size(),
                                                   .num_chunks = num_chunks,
                                                   .num_micro = 3 * group.size()},
                                                  group.rank());
    executor.run(schedule, message, work);
    compute->synchronize();
    size_t num_outputs = 0, num_gradients = 0;
    for (const Action& action : schedule.actions) {
      const bool forward = action.kind == Action::Kind::Forward;
      const Tensor& result =
          forward ? work.outputs().at(num_outputs++) : work.gradients().at(num_gradients++);
      const std::vector<float> expected = RelayWork::expected(
          forward ? action.micro : RelayWork::kGradient + action.micro, message.shape.numel());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), result.data<float>()))
          << action_text(action, num_chunks);
    }
  }
}

TEST_F(ExecutorMpi, PassesMessagesOfTheHost) {
  const auto device = make_cpu_device();
  expect_relayed(*runtime().world_group(), *device);
}

// The ranks of a host share its GPUs.
TEST_F(ExecutorMpi, PassesMessagesOfAGpuThroughTheHost) {
  const int num_gpus = num_cuda_devices();
  if (num_gpus == 0) GTEST_SKIP() << "no GPU";
  const auto device = make_cuda_device(runtime().local_rank() % num_gpus);
  expect_relayed(*runtime().world_group(), *device);
}

TEST_F(ExecutorMpi, PassesMessagesThroughNccl) {
  if (!nccl_available()) GTEST_SKIP() << "built without NCCL";
  if (num_cuda_devices() < runtime().local_size()) GTEST_SKIP() << "fewer GPUs than ranks";
  const auto device = make_cuda_device(runtime().local_rank());
  const auto group = runtime().world_nccl_group(*device);
  expect_relayed(*group, *device);
  // Larger than the buffers of NCCL, so that a send ends only when the other rank receives.
  expect_relayed(*group, *device, {{2048, 4096}, DType::F32});
}

}  // namespace
}  // namespace ferry::testing
