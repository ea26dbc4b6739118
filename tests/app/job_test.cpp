#include "app/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/backend.h"
#include "app/run_config.h"
#include "core/mark.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Ended {
  int code = -1;
  std::string text;
};

Ended end_of(const std::function<ExitCode(Runtime&)>& body) {
  ::testing::internal::CaptureStderr();
  Ended ended;
  ended.code = run_job(body);
  ended.text = ::testing::internal::GetCapturedStderr();
  return ended;
}

TEST(RunJob, ReturnsTheCodeOfItsBody) {
  for (const ExitCode code : {ExitCode::Done, ExitCode::Stopped}) {
    const Ended ended = end_of([&](Runtime&) { return code; });
    EXPECT_EQ(ended.code, static_cast<int>(code));
    EXPECT_EQ(ended.text, "");
  }
}

TEST(RunJob, EveryKindOfErrorHasItsExitCode) {
  const std::vector<std::pair<ExitCode, int>> cases = {
      {ExitCode::Internal, 1}, {ExitCode::Usage, 2},    {ExitCode::Data, 3},
      {ExitCode::Storage, 4},  {ExitCode::Resource, 5}, {ExitCode::Numerical, 6},
      {ExitCode::Lost, 75},    {ExitCode::Stopped, 76}};
  for (const auto& [code, number] : cases) {
    const Ended ended = end_of([code = code](Runtime&) -> ExitCode { fail(code, "so it is"); });
    EXPECT_EQ(ended.code, number);
    EXPECT_EQ(ended.text, "error: so it is\n");
  }
}

TEST(RunJob, OtherExceptionsAreInternalErrors) {
  const Ended ended = end_of([](Runtime&) -> ExitCode { throw std::out_of_range("no such key"); });
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.text, "error: internal error: no such key\n");
}

TEST(PrintError, NamesTheRankWhereItMatters) {
  const auto printed = [](const Error& error, int rank, int size) {
    ::testing::internal::CaptureStderr();
    print_error(error, rank, size, "node-a");
    return ::testing::internal::GetCapturedStderr();
  };
  mark(5, "forward");
  EXPECT_EQ(printed(Error(ExitCode::Data, "error: bad id"), 1, 2),
            "[rank 1] error: bad id\n  rank: 1 of 2 on node-a, step 5, forward\n");
  EXPECT_EQ(printed(Error(ExitCode::Data, "bad id"), 0, 1), "error: bad id\n");
  EXPECT_EQ(printed(Error(ExitCode::Usage, "bad key"), 0, 2), "error: bad key\n");
}

TEST(ChooseBackend, TakesTheCpuWhereItIsAskedFor) {
  const auto runtime = Runtime::start();
  const Backend backend = choose_backend("cpu", "fp32", *runtime);
  EXPECT_FALSE(backend.on_gpu());
  EXPECT_TRUE(backend.device().is_cpu());
  EXPECT_EQ(backend.transport, "none");
  EXPECT_EQ(backend.world->size(), 1);
  EXPECT_EQ(backend.notice, "");
  EXPECT_THAT(backend.binding,
              AllOf(HasSubstr("rank 0 on " + runtime->host_name() + ": " + backend.device().name()),
                    HasSubstr(", CPUs ")));
}

TEST(ChooseBackend, PoisonsMemoryForEveryCommand) {
  const auto runtime = Runtime::start();
  RunConfig config;
  config.run.backend = "cpu";
  EXPECT_FALSE(choose_backend(config, *runtime).device().poison_memory());
  config.debug.poison_memory = true;
  EXPECT_TRUE(choose_backend(config, *runtime).device().poison_memory());
}

TEST(ChooseBackend, GraphsNeedAGpuToTrain) {
  const auto runtime = Runtime::start();
  RunConfig config;
  config.model.precision = "fp64";  // that is the CPU
  const Backend backend = choose_backend(config, *runtime);
  require_gpu_for_graphs(config, backend);
  config.cuda_graph.impl = "local";
  try {
    require_gpu_for_graphs(config, backend);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_STREQ(error.what(),
                 "error: cuda_graph.impl = local on the CPU\n"
                 "  why : run.backend = auto is the CPU here, and only GPUs replay recorded work\n"
                 "  try : cuda_graph.impl = none");
  }
}

TEST(ChooseBackend, AutoTakesAGpuIfThereIsOneAndItHasThePrecision) {
  const auto runtime = Runtime::start();
  EXPECT_FALSE(choose_backend("auto", "fp64", *runtime).on_gpu());
  EXPECT_EQ(choose_backend("auto", "fp32", *runtime).on_gpu(), num_cuda_devices() > 0);
}

TEST(ChooseBackend, AGpuThatIsNotThereIsAResourceError) {
  if (num_cuda_devices() > 0) GTEST_SKIP() << "there is a GPU";
  const auto runtime = Runtime::start();
  try {
    choose_backend("cuda", "fp32", *runtime);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Resource);
    EXPECT_THAT(error.what(), HasSubstr("run.backend = \"cuda\", but no GPU can be used"));
    EXPECT_THAT(error.what(), HasSubstr("try : run.backend=cpu"));
  }
}

}  // namespace
}  // namespace ferry
