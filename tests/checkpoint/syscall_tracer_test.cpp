// The tool that the tests of system calls rest on does what it says.

#include "tests/support/syscall_tracer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "tests/support/temp_dir.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;

class SyscallTracerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string defect = tracing_defect();
    if (!defect.empty()) GTEST_SKIP() << defect;
  }

  /// Writes eight bytes to a file; 0 if each call succeeded.
  static int write_file(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    if (file < 0) return errno;
    const ssize_t written = ::write(file, "12345678", 8);
    if (written < 0) return errno;
    if (::close(file) != 0) return errno;
    return written == 8 ? 0 : 99;
  }

  static std::vector<std::string> names(const TracedRun& run) {
    std::vector<std::string> names;
    for (const TracedCall& call : run.calls) names.push_back(call.name);
    return names;
  }

  static int64_t size(const std::filesystem::path& path) {
    return static_cast<int64_t>(std::filesystem::file_size(path));
  }

  TempDir folder_;
  TempDir elsewhere_;
  const std::filesystem::path file_ = folder_ / "file";
};

TEST_F(SyscallTracerTest, CountsCallsBelowTheFolderOnly) {
  const TracedRun run = SyscallTracer(folder_.path(), {}).run([&] {
    return write_file(elsewhere_ / "file") + write_file(file_);
  });
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_FALSE(run.is_hit);
  EXPECT_THAT(names(run), ElementsAre("openat", "write", "close"));
  for (const TracedCall& call : run.calls) EXPECT_EQ(call.path, file_);
}

TEST_F(SyscallTracerTest, AFailingCallIsNotMade) {
  const auto run_with = [&](int at) {
    return SyscallTracer(folder_.path(), {SyscallFault::Fail, at, EDQUOT}).run([&] {
      return write_file(file_);
    });
  };
  TracedRun run = run_with(0);
  EXPECT_TRUE(run.is_hit);
  EXPECT_EQ(run.exit_code, EDQUOT);
  EXPECT_FALSE(std::filesystem::exists(file_));
  run = run_with(1);
  EXPECT_EQ(run.exit_code, EDQUOT);
  EXPECT_EQ(size(file_), 0);
  EXPECT_THAT(names(run), ElementsAre("openat", "write"));
  run = run_with(3);  // there is no such call
  EXPECT_FALSE(run.is_hit);
  EXPECT_EQ(run.exit_code, 0);
}

TEST_F(SyscallTracerTest, AShortWriteWritesHalf) {
  const TracedRun run = SyscallTracer(folder_.path(), {SyscallFault::ShortWrite, 1}).run([&] {
    return write_file(file_);
  });
  EXPECT_TRUE(run.is_hit);
  EXPECT_EQ(run.exit_code, 99);
  EXPECT_EQ(size(file_), 4);
  const TracedRun other = SyscallTracer(folder_.path(), {SyscallFault::ShortWrite, 0}).run([&] {
    return write_file(file_);
  });
  EXPECT_FALSE(other.is_hit);
}

TEST_F(SyscallTracerTest, KillsBeforeTheCall) {
  const TracedRun run =
      SyscallTracer(folder_.path(), {SyscallFault::Kill, 1}).run([&] { return write_file(file_); });
  EXPECT_TRUE(run.is_hit);
  EXPECT_EQ(run.signal, SIGKILL);
  EXPECT_EQ(size(file_), 0);
}

TEST_F(SyscallTracerTest, FollowsThreads) {
  const auto body = [&] {
    int code = -1;
    std::thread([&] { code = write_file(file_); }).join();
    return code;
  };
  EXPECT_EQ(SyscallTracer(folder_.path(), {SyscallFault::Fail, 1, EIO}).run(body).exit_code, EIO);
  EXPECT_EQ(SyscallTracer(folder_.path(), {SyscallFault::Kill, 1}).run(body).signal, SIGKILL);
}

TEST_F(SyscallTracerTest, FollowsAProgram) {
  std::ofstream(file_) << "12345678";
  const std::filesystem::path copy = elsewhere_ / "copy";
  const auto copy_file = [&] {
    ::close(STDERR_FILENO);  // where cp would complain
    ::execl("/bin/cp", "cp", file_.c_str(), copy.c_str(), nullptr);
    return 99;
  };
  const TracedRun run = SyscallTracer(folder_.path(), {}).run(copy_file);
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(size(copy), 8);
  const auto all = names(run);
  const auto opening = static_cast<int>(std::find(all.begin(), all.end(), "openat") - all.begin());
  const SyscallPlan plan{SyscallFault::Fail, opening, EIO};
  EXPECT_EQ(SyscallTracer(folder_.path(), plan).run(copy_file).exit_code, 1);
}

}  // namespace
}  // namespace ferry::testing
