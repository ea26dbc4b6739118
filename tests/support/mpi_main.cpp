// The main program of tests that run under mpirun. Every rank runs the same tests in step. Rank 0
// prints and writes the XML file, and fails a test that failed on any rank; other ranks print
// nothing but their failures.

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "core/check.h"
#include "core/comm/runtime.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {
namespace {

std::unique_ptr<Runtime>& runtime_slot() {
  static std::unique_ptr<Runtime> runtime;
  return runtime;
}

// Runs before the default printer at the end of a test, so that its verdict is of all ranks.
class AllRanks final : public ::testing::EmptyTestEventListener {
 public:
  explicit AllRanks(Runtime& runtime) : runtime_(runtime) {}

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (runtime_.rank() == 0 || !result.failed()) return;
    std::cerr << concat("[rank ", runtime_.rank(), "] ", result.file_name(), ':',
                        result.line_number(), ": Failure\n", result.message(), '\n')
              << std::flush;
  }

  void OnTestEnd(const ::testing::TestInfo& test) override {
    const std::string own = test.result()->Failed() ? "failed" : "";
    try {
      const auto texts = runtime_.control().gather(own, 0, concat("end of test ", test.name()));
      for (size_t rank = 1; rank < texts.size(); ++rank)
        if (!texts[rank].empty()) ADD_FAILURE() << "on rank " << rank;
    } catch (const Error& error) {
      // Ranks that are not in step cannot run the tests that follow.
      std::cerr << concat("[rank ", runtime_.rank(), "] ", error.what(), '\n');
      runtime_.abort(1);
    }
  }

 private:
  Runtime& runtime_;
};

int run_all_tests(int argc, char** argv) {
  // Short, for ranks that are not in step; a longer one can be set outside.
  if (setenv("FERRY_COMM_TIMEOUT_S", "60", 0) != 0) return 1;
  runtime_slot() = Runtime::start();
  Runtime& runtime = *runtime_slot();
  ::testing::InitGoogleTest(&argc, argv);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (runtime.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
  }
  listeners.Append(new AllRanks(runtime));
  const int failed = RUN_ALL_TESTS();
  const auto all = runtime.control().gather(failed ? "failed" : "", 0, "end of the tests");
  std::string verdict;
  for (const std::string& one : all) verdict += one;
  const bool bad = !runtime.control().broadcast(verdict, 0, "verdict").empty();
  runtime_slot().reset();
  return bad ? 1 : 0;
}

}  // namespace

Runtime& mpi_runtime() { return *runtime_slot(); }

}  // namespace ferry::testing

int main(int argc, char** argv) {
  try {
    return ferry::testing::run_all_tests(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    if (ferry::testing::runtime_slot()) ferry::testing::mpi_runtime().abort(1);
    return 1;
  }
}
