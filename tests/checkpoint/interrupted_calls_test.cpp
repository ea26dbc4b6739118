// Calls that signals interrupt, and handles that a network file system lets go stale, end well.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/file_system.h"
#include "tests/support/syscall_tracer.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using testing::SyscallFault;
using testing::SyscallTracer;
using testing::TempDir;
using testing::TracedRun;

constexpr int kError = 3, kOtherText = 4;

class InterruptedCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string defect = testing::tracing_defect();
    if (!defect.empty()) GTEST_SKIP() << defect;
  }
  TracedRun run(const std::function<int()>& body, SyscallFault fault = SyscallFault::None,
                int at = -1, int error = 0) {
    const auto guarded = [&] {
      try {
        return body();
      } catch (const std::exception&) {
        return kError;
      }
    };
    return SyscallTracer(dir_.path(), {fault, at, error}).run(guarded);
  }
  TempDir dir_;
};

TEST_F(InterruptedCalls, AreMadeAgain) {
  const auto body = [&] {
    FileSystem& files = posix_file_system();
    files.make_directory(dir_ / "folder");
    write_text(files, dir_.path() / "folder" / "file", "some text");
    files.rename(dir_.path() / "folder" / "file", dir_.path() / "folder" / "renamed");
    files.sync_directory(dir_ / "folder");
    if (!files.exists(dir_.path() / "folder" / "renamed")) return kOtherText;
    if (files.status(dir_ / "folder").free_bytes <= 0) return kOtherText;
    if (read_text(files, dir_.path() / "folder" / "renamed", 100) != "some text") return kOtherText;
    remove_tree(files, dir_ / "folder");
    return 0;
  };
  const std::vector<testing::TracedCall> calls = run(body).calls;
  ASSERT_GT(calls.size(), 10u);
  for (int at = 0; at < static_cast<int>(calls.size()); ++at) {
    const std::string& name = calls[static_cast<size_t>(at)].name;
    EXPECT_EQ(run(body, SyscallFault::Fail, at, EINTR).exit_code, 0) << name;
    EXPECT_EQ(run(body, SyscallFault::ShortWrite, at).exit_code, 0) << name;
    std::filesystem::remove_all(dir_ / "folder");
  }
}

TEST_F(InterruptedCalls, AStaleHandleIsOpenedAgainForReading) {
  write_text(posix_file_system(), dir_ / "file", "some text");
  const auto body = [&] {
    return read_text(posix_file_system(), dir_ / "file", 100) == "some text" ? 0 : kOtherText;
  };
  const std::vector<testing::TracedCall> calls = run(body).calls;
  int num_opened = 0, num_read = 0;
  for (int at = 0; at < static_cast<int>(calls.size()); ++at) {
    const std::string& name = calls[static_cast<size_t>(at)].name;
    if (!name.starts_with("open") && !name.starts_with("pread")) continue;
    (name.starts_with("open") ? num_opened : num_read) += 1;
    EXPECT_EQ(run(body, SyscallFault::Fail, at, ESTALE).exit_code, 0) << name;
    EXPECT_EQ(run(body, SyscallFault::Fail, at, EIO).exit_code, kError) << name;
  }
  EXPECT_GE(num_opened, 1);
  EXPECT_GE(num_read, 1);
}

TEST_F(InterruptedCalls, AStaleHandleOfAWrittenFileIsAnError) {
  const auto body = [&] {
    std::filesystem::remove(dir_ / "file");
    const auto file = posix_file_system().create(dir_ / "file");
    file->write_at("text", 4, 0);
    char text[4];
    file->read_at(text, 4, 0);
    return 0;
  };
  const std::vector<testing::TracedCall> calls = run(body).calls;
  for (int at = 0; at < static_cast<int>(calls.size()); ++at)
    if (calls[static_cast<size_t>(at)].name.starts_with("pread")) {
      EXPECT_EQ(run(body, SyscallFault::Fail, at, ESTALE).exit_code, kError);
    }
}

}  // namespace
}  // namespace ferry
