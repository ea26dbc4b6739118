#include "app/stop_request.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

class StopRequestTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) std::signal(signal, SIG_DFL);
  }
  void touch(const char* name) { std::ofstream(dir_ / name) << ""; }

  static void expect(const Request& request, bool save, bool stop) {
    EXPECT_EQ(request.save, save);
    EXPECT_EQ(request.stop, stop);
  }

  testing::TempDir dir_;
};

TEST_F(StopRequestTest, NothingIsAskedForAtFirst) {
  StopRequest requests(dir_.path(), {});
  expect(requests.poll(true), false, false);
}

TEST_F(StopRequestTest, SaveSignalActsOnce) {
  StopRequest requests(dir_.path(), {});
  ASSERT_EQ(std::raise(SIGUSR1), 0);
  expect(requests.poll(false), true, false);
  expect(requests.poll(false), false, false);
  ASSERT_EQ(std::raise(SIGUSR1), 0);
  expect(requests.poll(false), true, false);
}

TEST_F(StopRequestTest, KnowsWhatIsLeftOfTheTimeLimit) {
  EXPECT_EQ(StopRequest(dir_.path(), {}).seconds_left(), std::nullopt);
  const double left = StopRequest(dir_.path(), 2.0).seconds_left().value();
  EXPECT_LE(left, 120);
  EXPECT_GT(left, 0);
}

TEST_F(StopRequestTest, StopSignalsStay) {
  for (const int signal : {SIGUSR2, SIGTERM, SIGINT}) {
    StopRequest requests(dir_.path(), {});
    ASSERT_EQ(std::raise(signal), 0);
    expect(requests.poll(false), false, true);
    expect(requests.poll(false), false, true);
  }
}

TEST_F(StopRequestTest, ASecondTerminationEndsTheProcess) {
  EXPECT_EXIT(
      {
        StopRequest requests(dir_.path(), {});
        if (std::raise(SIGTERM) != 0 || !requests.poll(false).stop) std::_Exit(1);
        std::raise(SIGTERM);
        std::_Exit(2);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST_F(StopRequestTest, FilesActOnceAndAreRemoved) {
  StopRequest requests(dir_.path(), {});
  touch("SAVE");
  expect(requests.poll(false), false, false);  // another rank looks for files
  expect(requests.poll(true), true, false);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "SAVE"));
  touch("STOP");
  expect(requests.poll(true), false, true);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "STOP"));
  expect(requests.poll(true), false, false);
}

TEST_F(StopRequestTest, TheTimeLimitStops) {
  StopRequest past(dir_.path(), 1e-9);
  expect(past.poll(false), false, true);
  StopRequest far(dir_.path(), 1e5);
  expect(far.poll(false), false, false);
}

}  // namespace
}  // namespace ferry
