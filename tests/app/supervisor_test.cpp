#include "app/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "core/check.h"
#include "core/mark.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kLost = static_cast<int>(ExitCode::Lost);

struct Ended {
  int code = -1;
  std::string text;
};

// A number that all processes of a test see.
class SharedNumber {
 public:
  SharedNumber()
      : number_(static_cast<std::atomic<int>*>(mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE,
                                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedNumber() { munmap(number_, sizeof(int)); }
  std::atomic<int>& operator*() { return *number_; }
  int wait_for_one() const {
    while (*number_ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return *number_;
  }

 private:
  std::atomic<int>* number_;
};

Supervision supervision() {
  return {.rank = "rank 2 of 4",
          .prefix = "[rank 2] ",
          .host = "node-a",
          .stopped_limit_s = 30,
          .silent_limit_s = 30};
}

// supervise() in a process of its own, which it renames, and which the tests kill. `interfere` is
// told the process.
Ended supervised(
    const std::function<int()>& body, const std::function<void(pid_t)>& interfere = [](pid_t) {},
    const Supervision& how = supervision()) {
  const testing::TempDir dir;
  const std::string path = dir / "stderr";
  std::fflush(nullptr);
  const pid_t process = fork();
  if (process == 0) {
    if (std::freopen(path.c_str(), "w", stderr) == nullptr) _exit(99);
    _exit(supervise(how, body));
  }
  interfere(process);
  int status = 0;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), text};
}

int sleep_for_ever() {
  while (true) pause();
}

TEST(Supervise, PassesTheCodeOfARankThatEnds) {
  for (const int code : {0, 2, 76}) {
    const Ended ended = supervised([code] { return code; });
    EXPECT_EQ(ended.code, code);
    EXPECT_EQ(ended.text, "");
  }
}

TEST(Supervise, SaysWhereARankWasKilled) {
  const Ended ended = supervised([] {
    mark(5, "backward");
    return raise(SIGKILL);
  });
  EXPECT_EQ(ended.code, kLost);
  EXPECT_THAT(ended.text,
              AllOf(HasSubstr("[rank 2] error: rank 2 of 4 on node-a was killed by signal 9"),
                    HasSubstr("\n  --> step 5, backward\n"), HasSubstr("memory ran out"),
                    HasSubstr("try : the same command again")));
}

TEST(Supervise, SaysThatARankCrashed) {
  const Ended ended = supervised([] {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer has a handler of its own
    return raise(SIGSEGV);
  });
  EXPECT_EQ(ended.code, kLost);
  EXPECT_THAT(ended.text, AllOf(HasSubstr("was killed by signal 11"), HasSubstr("a crash")));
}

TEST(Supervise, ARankThatLeavesWithoutAWordIsLost) {
  const Ended ended = supervised([]() -> int { _exit(0); });
  EXPECT_EQ(ended.code, kLost);
  EXPECT_THAT(ended.text, HasSubstr("ended in the middle of the job"));
  // With a code of its own it has said why.
  const Ended other = supervised([]() -> int { _exit(3); });
  EXPECT_EQ(other.code, 3);
  EXPECT_EQ(other.text, "");
}

TEST(Supervise, ARankThatIsStoppedTooLongIsLost) {
  Supervision how = supervision();
  how.stopped_limit_s = 0.4;
  const Ended ended = supervised(
      [] {
        mark(6, "save");
        return raise(SIGSTOP);
      },
      [](pid_t) {}, how);
  EXPECT_EQ(ended.code, kLost);
  EXPECT_THAT(ended.text, AllOf(HasSubstr("was stopped (SIGSTOP) for longer than 0.4 s"),
                                HasSubstr("--> step 6, save"), HasSubstr("FERRY_COMM_TIMEOUT_S")));
}

TEST(Supervise, ARankThatGoesOnAfterAStopIsNotLost) {
  SharedNumber rank;
  const Ended ended = supervised(
      [&] {
        *rank = getpid();
        raise(SIGSTOP);
        return 76;
      },
      [&](pid_t) {
        const pid_t process = rank.wait_for_one();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        kill(process, SIGCONT);
      });
  EXPECT_EQ(ended.code, 76);
  EXPECT_EQ(ended.text, "");
}

TEST(Supervise, ARankThatDoesNotGetOnIsLost) {
  Supervision how = supervision();
  how.silent_limit_s = 0.6;
  const Ended ended = supervised(
      [] {
        mark(7, "forward");
        return sleep_for_ever();
      },
      [](pid_t) {}, how);
  EXPECT_EQ(ended.code, kLost);
  EXPECT_THAT(ended.text,
              AllOf(HasSubstr("rank 2 of 4 on node-a did not get on for 0.6 s"),
                    HasSubstr("--> step 7, forward"), HasSubstr("10 x FERRY_COMM_TIMEOUT_S")));
}

// What makes no marks at all (a bench) may take any time, and so may all steps together.
TEST(Supervise, ARankThatGetsOnIsNotLost) {
  Supervision how = supervision();
  how.silent_limit_s = 2;  // far above a nap on a busy machine, and below all of them together
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(450)); };
  const Ended silent = supervised(
      [&] {
        for (int i = 0; i < 5; ++i) nap();
        return 76;
      },
      [](pid_t) {}, how);
  EXPECT_EQ(silent.code, 76);
  const Ended busy = supervised(
      [&] {
        for (int step = 1; step <= 5; ++step) {
          mark(step, "forward");
          nap();
        }
        return 76;
      },
      [](pid_t) {}, how);
  EXPECT_EQ(busy.code, 76);
}

// The launcher ends both when another rank has failed: that is not this rank's fault.
TEST(Supervise, IsSilentWhenTheLauncherEndsTheJob) {
  SharedNumber rank;
  const Ended ended = supervised(
      [&] {
        *rank = getpid();
        return sleep_for_ever();
      },
      [&](pid_t supervisor) {
        const pid_t process = rank.wait_for_one();
        kill(supervisor, SIGTERM);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        kill(process, SIGTERM);
      });
  EXPECT_EQ(ended.code, kLost);
  EXPECT_EQ(ended.text, "");
}

// Requests to save or stop are the rank's; they must not end the process that watches it.
TEST(Supervise, LeavesTheOtherSignalsToTheRank) {
  SharedNumber go;
  const Ended ended = supervised(
      [&] {
        *go = 1;
        while (*go != 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return 76;
      },
      [&](pid_t supervisor) {
        go.wait_for_one();
        for (const int signal : {SIGUSR1, SIGUSR2, SIGHUP, SIGINT, SIGTERM})
          kill(supervisor, signal);
        *go = 2;
      });
  EXPECT_EQ(ended.code, 76);
}

TEST(Supervise, TheRankEndsWithItsSupervisor) {
  SharedNumber rank;
  const Ended ended = supervised(
      [&] {
        mark(9, "optimizer");
        *rank = getpid();
        return sleep_for_ever();
      },
      [&](pid_t supervisor) {
        const pid_t process = rank.wait_for_one();
        kill(supervisor, SIGKILL);
        // Its last words need its end; it is no child of this process, which cannot wait for it.
        for (int i = 0; i < 1000; ++i) {
          std::ifstream stat(concat("/proc/", process, "/stat"));
          std::string pid, name, state;
          if (!(stat >> pid >> name >> state) || state == "Z") return;
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        ADD_FAILURE() << "still there after 10 s";
      });
  EXPECT_EQ(ended.code, -SIGKILL);
  EXPECT_THAT(ended.text, HasSubstr("[rank 2] error: rank 2 of 4 on node-a lost the process that "
                                    "watches it\n  --> step 9, optimizer\n"));
}

TEST(Supervise, TheRankEndsWithTheLauncher) {
  SharedNumber rank;
  std::fflush(nullptr);
  const pid_t launcher = fork();
  if (launcher == 0) {
    if (fork() == 0)
      _exit(supervise(supervision(), [&] {
        *rank = getpid();
        return sleep_for_ever();
      }));
    sleep_for_ever();
  }
  const pid_t process = rank.wait_for_one();
  kill(launcher, SIGKILL);
  ASSERT_EQ(waitpid(launcher, nullptr, 0), launcher);
  bool gone = false;
  for (int i = 0; i < 1000 && !gone; ++i) {
    std::ifstream stat(concat("/proc/", process, "/stat"));
    std::string pid, name, state;
    gone = !(stat >> pid >> name >> state) || state == "Z";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(gone);
}

// What ps shows: the rank under the name of the program, the supervisor under another.
TEST(Supervise, TheSupervisorHasAnotherName) {
  SharedNumber rank;
  std::string shown;
  supervised(
      [&] {
        *rank = getpid();
        return sleep_for_ever();
      },
      [&](pid_t supervisor) {
        rank.wait_for_one();
        for (int i = 0; i < 200 && !shown.starts_with("ferry-w"); ++i) {
          std::ifstream command(concat("/proc/", supervisor, "/cmdline"));
          std::getline(command, shown, '\0');
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        kill(*rank, SIGKILL);
      });
  EXPECT_THAT(shown, ::testing::StartsWith("ferry-w"));  // as much as there is room for
}

}  // namespace
}  // namespace ferry
