#include "app/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "core/check.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

// A host of 8 GiB of which 6 are available.
class AvailableHostMemory : public ::testing::Test {
 protected:
  AvailableHostMemory() {
    write("proc/meminfo",
          "MemTotal:        8388608 kB\nMemFree:         1048576 kB\n"
          "MemAvailable:    6291456 kB\n");
  }
  void write(const std::string& name, const std::string& text) {
    const fs::path path = dir_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void write(const std::string& name, int64_t number) {
    write(name, std::to_string(number) + "\n");
  }
  HostMemory available() const { return available_host_memory(dir_ / "proc", dir_ / "cgroup"); }

  testing::TempDir dir_;
};

TEST_F(AvailableHostMemory, IsThatOfTheHostWithoutLimits) {
  const auto expect_host = [&] {
    EXPECT_EQ(available().available, 6 * kGiB);
    EXPECT_EQ(available().source, (dir_ / "proc/meminfo").string());
  };
  expect_host();  // without control groups
  write("proc/self/cgroup", "0::/\n");
  expect_host();
  write("cgroup/memory.max", "max\n");
  write("cgroup/memory.current", 7 * kGiB);
  expect_host();
  write("cgroup/memory.max", 100 * kGiB);
  expect_host();
}

TEST_F(AvailableHostMemory, IsWhatItsControlGroupLeaves) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("cgroup/job/step/memory.max", 4 * kGiB);
  write("cgroup/job/step/memory.current", 1 * kGiB);
  EXPECT_EQ(available().available, 3 * kGiB);
  EXPECT_EQ(available().source, (dir_ / "cgroup/job/step/memory.max").string());
  // What files have in the cache can be had.
  write("cgroup/job/step/memory.stat",
        concat("anon 5\ninactive_file ", kGiB / 2, "\nactive_file ", kGiB / 4, "\n"));
  EXPECT_EQ(available().available, 3 * kGiB + kGiB * 3 / 4);
  write("cgroup/job/step/memory.stat", "");
  write("cgroup/job/step/memory.current", 5 * kGiB);
  EXPECT_EQ(available().available, 0) << "over its limit";
}

TEST_F(AvailableHostMemory, IsWhatTheGroupsAboveLeave) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("cgroup/job/step/memory.max", "max\n");
  write("cgroup/job/step/memory.current", kGiB);
  write("cgroup/job/memory.max", 5 * kGiB);
  write("cgroup/job/memory.current", 3 * kGiB);
  EXPECT_EQ(available().available, 2 * kGiB);
  EXPECT_EQ(available().source, (dir_ / "cgroup/job/memory.max").string());
  // In a container its own group is the root.
  write("cgroup/memory.max", 4 * kGiB);
  write("cgroup/memory.current", 3 * kGiB);
  EXPECT_EQ(available().available, kGiB);
  write("proc/self/cgroup", "0::/not/below\n");
  EXPECT_EQ(available().available, kGiB);
}

TEST_F(AvailableHostMemory, ReadsTheFirstVersionOfControlGroups) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/job\n0::/\n");
  write("cgroup/memory/job/memory.limit_in_bytes", std::numeric_limits<int64_t>::max() - 4095);
  write("cgroup/memory/job/memory.usage_in_bytes", kGiB);
  EXPECT_EQ(available().available, 6 * kGiB);
  write("cgroup/memory/job/memory.limit_in_bytes", 3 * kGiB);
  write("cgroup/memory/job/memory.stat", concat("total_inactive_file ", kGiB / 2, "\n"));
  EXPECT_EQ(available().available, 2 * kGiB + kGiB / 2);
  EXPECT_EQ(available().source, (dir_ / "cgroup/memory/job/memory.limit_in_bytes").string());
}

TEST_F(AvailableHostMemory, OfThisMachine) {
  const HostMemory host = available_host_memory();
  EXPECT_GT(host.available, 0);
  EXPECT_FALSE(host.source.empty());
}

TEST_F(AvailableHostMemory, AHostThatDoesNotSayIsAnError) {
  write("proc/meminfo", "MemTotal: 1 kB\n");
  EXPECT_THROW(available(), Error);
}

MemoryEstimate estimate() {
  MemoryEstimate memory;
  memory.optimizer_bytes.host_masters = 4 * kGiB;
  memory.optimizer_bytes.host_moments = 8 * kGiB;
  memory.optimizer_bytes.gradient_staging = 4 * kGiB;
  memory.optimizer_bytes.value_staging = kGiB / 8;
  memory.host = 4 * kGiB + kGiB / 8 + kGiB / 2;  // half a GiB of activations
  memory.pageable = 12 * kGiB;
  return memory;
}

TEST(HostMemoryProblem, NamesWhatIsNeededWhatThereIsAndWhatToDo) {
  RunConfig config;
  config.optimizer.offload.overlap_d2h_h2d = true;
  const MemoryEstimate one = estimate();
  const int64_t own = one.host + one.pageable;
  EXPECT_EQ(host_memory_problem(one, own, 1, {own, "/proc/meminfo"}, config), "");
  EXPECT_EQ(
      host_memory_problem(one, own, 1, {own - kGiB, "/proc/meminfo"}, config),
      "the host has too little memory: 16.62 GiB are needed, 15.62 GiB are available\n"
      "  --> /proc/meminfo\n"
      "  why : this rank needs 12.00 GiB for masters and moments, 4.00 for gradients and 0.12 for "
      "weights on their way, 0.50 for activations and weights of layers, 0.00 for "
      "saves beside training\n"
      "  try : a smaller optimizer.offload.fraction, or optimizer.offload.overlap_d2h_h2d = false, "
      "or less activation or layer offload, or a host with more memory");
}

TEST(HostMemoryProblem, OffersOnlyWhatHelps) {
  MemoryEstimate one = estimate();
  const std::string without_overlap = host_memory_problem(one, 34 * kGiB, 2, {0, "x"}, {});
  EXPECT_THAT(without_overlap, HasSubstr("of 2 ranks on this host, this one needs 12.00 GiB"));
  EXPECT_THAT(without_overlap, Not(HasSubstr("overlap_d2h_h2d")));
  EXPECT_THAT(without_overlap, HasSubstr("or fewer ranks per host"));
  EXPECT_THAT(without_overlap, Not(HasSubstr("more memory")));
  one = {};
  one.host = kGiB;
  const std::string activations = host_memory_problem(one, kGiB, 1, {0, "x"}, {});
  EXPECT_THAT(activations, HasSubstr("try : less activation or layer offload"));
  EXPECT_THAT(activations, Not(HasSubstr("fraction")));
  EXPECT_THAT(activations, Not(HasSubstr("checkpoint")));
  one = {};
  one.save_staging = 2 * kGiB;
  const std::string staging = host_memory_problem(one, 2 * kGiB, 1, {0, "x"}, {});
  EXPECT_THAT(staging, HasSubstr("2.00 for saves beside training"));
  EXPECT_THAT(staging, HasSubstr("try : checkpoint.async = false, or a host"));
  one.save_copies = kGiB;
  EXPECT_THAT(host_memory_problem(one, 3 * kGiB, 1, {0, "x"}, {}),
              HasSubstr("checkpoint.async = false, or a smaller checkpoint.copy_gib"));
}

// Ranks 0 and 2 are on one host, rank 1 on another.
TEST(RequireHostMemory, CountsTheRanksOfTheHost) {
  const auto refused_ranks = [](int64_t available) {
    std::vector<int> refused(3);
    testing::run_ranks(3, [&](Group& world, Control& control) {
      MemoryEstimate own;
      own.optimizer_bytes.host_masters = own.pageable = (world.rank() + 1) * kGiB;
      try {
        require_host_memory(own, {}, world.rank() == 1 ? "b" : "a", control, {available, "here"});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::Resource);
        EXPECT_THAT(error.what(), ::testing::StartsWith("error: the host has too little memory"));
        EXPECT_THAT(error.what(), HasSubstr("of 2 ranks on this host"));
        EXPECT_THAT(error.what(), HasSubstr("4.00 GiB are needed"));
        refused[static_cast<size_t>(world.rank())] = 1;
      }
    });
    return refused;
  };
  EXPECT_EQ(refused_ranks(4 * kGiB), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(refused_ranks(4 * kGiB - 1), (std::vector<int>{1, 0, 1}));
}

}  // namespace
}  // namespace ferry
