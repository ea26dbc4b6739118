#include "app/cpu_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "core/check.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

TEST(CpuList, IsReadAndWritten) {
  EXPECT_THAT(parse_cpu_list("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(parse_cpu_list("5\n"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list("4,2,2-3"), ElementsAre(2, 3, 4));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(cpu_list_text({1, 3}), "1,3");
  EXPECT_EQ(cpu_list_text({}), "");
}

TEST(CpuList, RefusesOtherText) {
  for (const char* text : {"a", "1-", "-1", "3-1", "1 2", "1,,2", "99999", "0-99999999999"})
    EXPECT_THAT([&] { parse_cpu_list(text); },
                ThrowsMessage<Error>(HasSubstr("is no list of CPUs")))
        << text;
}

TEST(NearestCpus, KeepsWhatTheLauncherChose) {
  EXPECT_THAT(nearest_cpus({0, 1, 2, 3}, {2, 3, 4, 5}), ElementsAre(2, 3));
  EXPECT_THAT(nearest_cpus({0, 1}, {2, 3}), ElementsAre(0, 1));  // bound elsewhere
  EXPECT_THAT(nearest_cpus({2}, {2, 3}), ElementsAre(2));        // bound closer
  EXPECT_THAT(nearest_cpus({0, 1}, {}), ElementsAre(0, 1));      // not known
}

TEST(PciPlace, IsReadFromTheSystem) {
  const ::ferry::testing::TempDir root;
  const auto device = root.path() / "bus/pci/devices/0000:1b:00.0";
  std::filesystem::create_directories(device);
  std::ofstream(device / "numa_node") << "1\n";
  std::ofstream(device / "local_cpulist") << "48-95,144-191\n";
  const PciPlace place = pci_place("0000:1B:00.0", root.path());
  EXPECT_EQ(place.numa_node, 1);
  EXPECT_EQ(cpu_list_text(place.cpus), "48-95,144-191");
  const PciPlace unknown = pci_place("0000:FF:00.0", root.path());
  EXPECT_EQ(unknown.numa_node, -1);
  EXPECT_THAT(unknown.cpus, IsEmpty());
}

TEST(BindThreads, BindsAllThreadsOfTheProcess) {
  const std::vector<int> before = allowed_cpus();
  ASSERT_FALSE(before.empty());
  if (before.size() < 2) GTEST_SKIP() << "one CPU";
  std::vector<int> seen_by_other;
  std::atomic<bool> bound{false};
  std::thread other([&] {
    while (!bound) std::this_thread::yield();
    seen_by_other = allowed_cpus();
  });
  bind_threads({before.back()});
  bound = true;
  other.join();
  EXPECT_THAT(allowed_cpus(), ElementsAre(before.back()));
  EXPECT_THAT(seen_by_other, ElementsAre(before.back()));
  bind_threads(before);
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(BindThreads, SaysWhatTheSystemRefuses) {
  try {
    bind_threads({8000});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Resource);
    EXPECT_THAT(error.what(), HasSubstr("cannot bind to CPUs 8000"));
  }
}

}  // namespace
}  // namespace ferry
