// Any layout gives the numbers of one rank, with ranks that are processes.

#include "tests/app/layouts.h"

#include <gtest/gtest.h>

#include "tests/app/layout_case.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {
namespace {

class LayoutsMpi : public ::testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    if (mpi_runtime().size() == 1) GTEST_SKIP() << "needs mpirun";
  }
};

TEST_P(LayoutsMpi, EqualOneRank) {
  const auto world = mpi_runtime().world_group();
  const LayoutCase made = make_layout_case(GetParam(), world->size());
  const RunConfig config = made.config();
  const auto lines = differences(train_layout(config, *world), train_alone(made.one_rank()),
                                 layout_tolerance(config.model.precision));
  EXPECT_TRUE(lines.empty()) << "seed " << made.seed << ":\n  " << made.command() << joined(lines);
}

INSTANTIATE_TEST_SUITE_P(Seeds, LayoutsMpi, ::testing::Range<uint64_t>(1, 17));

}  // namespace
}  // namespace ferry::testing
