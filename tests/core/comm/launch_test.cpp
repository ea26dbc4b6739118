#include "core/comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/check.h"
#include "core/comm/runtime.h"
#include "core/wait.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Launch launch_with(const std::map<std::string, std::string>& variables) {
  return read_launch([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, AloneWithoutALauncher) {
  const Launch alone = launch_with({});
  EXPECT_FALSE(alone.by_launcher);
  EXPECT_EQ(alone.num_ranks, 1);
  EXPECT_EQ(alone.rank, 0);
  // In a batch script of an allocation for many tasks, which is one process all the same.
  EXPECT_FALSE(launch_with({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).by_launcher);
  EXPECT_FALSE(launch_with({{"SLURM_STEP_NUM_TASKS", "1"}}).by_launcher);
}

TEST(Launch, ByMpirunAndSrun) {
  const Launch mpirun = launch_with({{"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"OMPI_COMM_WORLD_RANK", "3"},
                                     {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_TRUE(mpirun.by_launcher);
  EXPECT_EQ(mpirun.num_ranks, 4);
  EXPECT_EQ(mpirun.rank, 3);
  EXPECT_EQ(launch_with({{"OMPI_COMM_WORLD_SIZE", "4"}}).rank, -1);
  const Launch pmi = launch_with({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  EXPECT_TRUE(pmi.by_launcher);
  EXPECT_EQ(pmi.num_ranks, 3);
  EXPECT_EQ(pmi.rank, 1);
  const Launch pmix = launch_with({{"PMIX_RANK", "1"}, {"SLURM_STEP_NUM_TASKS", "16"}});
  EXPECT_TRUE(pmix.by_launcher);
  EXPECT_EQ(pmix.num_ranks, 16);
  EXPECT_EQ(pmix.rank, 1);
  EXPECT_EQ(launch_with({{"PMIX_RANK", "0"}}).num_ranks, 0);
}

TEST(Launch, RefusesTasksThatDoNotKnowOfEachOther) {
  try {
    launch_with({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("srun started 4 tasks"), HasSubstr("--mpi=pmix")));
  }
}

TEST(CommTimeout, IsANumberAboveZero) {
  EXPECT_EQ(read_comm_timeout(nullptr), 600);
  EXPECT_EQ(read_comm_timeout("0.5"), 0.5);
  for (const char* text : {"", "0", "-1", "nan", "inf", "10 s", "soon"}) {
    try {
      read_comm_timeout(text);
      ADD_FAILURE() << "accepts " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      EXPECT_THAT(error.what(), HasSubstr(concat("FERRY_COMM_TIMEOUT_S = '", text, "'")));
    }
  }
}

TEST(Runtime, IsOneRankWithoutALauncher) {
  set_wait_limit(1);  // other than it is by itself
  const auto runtime = Runtime::start();
  EXPECT_EQ(runtime->rank(), 0);
  EXPECT_EQ(runtime->size(), 1);
  EXPECT_EQ(runtime->local_rank(), 0);
  EXPECT_EQ(runtime->local_size(), 1);
  EXPECT_FALSE(runtime->host_name().empty());
  EXPECT_EQ(hang_limit_seconds(), 10 * comm_timeout_seconds());
  EXPECT_EQ(wait_limit_seconds(), hang_limit_seconds());
  EXPECT_EQ(runtime->world_group()->size(), 1);
  EXPECT_EQ(runtime->control().gather("a", 0, "letters"), std::vector<std::string>{"a"});
  EXPECT_EQ(runtime->control().broadcast("b", 0, "letter"), "b");
}

}  // namespace
}  // namespace ferry
