#include "app/supervisor.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>

#include "core/check.h"
#include "core/mark.h"

namespace ferry {
namespace {

constexpr timespec kLook{0, 250'000'000};
constexpr double kLookSeconds = 0.25;

// Sent to the rank when its supervisor dies.
int orphan_signal() { return SIGRTMIN; }

// What on_orphaned may use: it must not allocate.
std::string orphan_message;

// The supervisor was killed: the launcher knows, and this is the last chance to say where.
void on_orphaned(int) {
  const char* place = mark_text_in_memory();
  iovec parts[] = {{orphan_message.data(), orphan_message.size()},
                   {const_cast<char*>(place), std::strlen(place)},
                   {const_cast<char*>("\n"), 1}};
  static_cast<void>(writev(STDERR_FILENO, parts, 3) < 0);
  _exit(static_cast<int>(ExitCode::Lost));
}

std::string message_start(const Supervision& supervision, const std::string& what) {
  return concat(supervision.prefix, "error: ", supervision.rank, " on ", supervision.host, " ",
                what);
}

void say_lost(const Supervision& supervision, const std::string& what, const std::string& why) {
  std::cerr << message_start(supervision, what)
            << concat("\n  --> ", mark_text(), "\n  why : ", why,
                      "\n  try : the same command again: it resumes\n")
            << std::flush;
}

sigset_t signals_of(const std::initializer_list<int>& numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) sigaddset(&set, number);
  return set;
}

// For ps and pkill: the process that computes keeps the name of the command, this one does not.
void rename_process() {
  const std::string name = "ferry-watch";
  prctl(PR_SET_NAME, name.c_str());
  std::ifstream stat("/proc/self/stat");
  std::string text;
  std::getline(stat, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  // Fields 3 to 49 follow the name in parentheses; 48 and 49 are where the arguments lie.
  std::string skipped;
  for (int field = 3; field < 48; ++field) fields >> skipped;
  uintptr_t begin = 0, end = 0;
  if (!(fields >> begin >> end) || begin == 0 || end <= begin) return;
  auto* arguments = reinterpret_cast<char*>(begin);
  std::memset(arguments, 0, end - begin);
  std::memcpy(arguments, name.data(), std::min<size_t>(name.size(), end - begin - 1));
}

[[noreturn]] void run_rank(const Supervision& supervision, pid_t supervisor,
                           std::atomic<bool>& ended, const std::function<int()>& body) {
  orphan_message = message_start(supervision, "lost the process that watches it\n  --> ");
  struct sigaction action = {};
  action.sa_handler = on_orphaned;
  CHECK(sigaction(orphan_signal(), &action, nullptr) == 0, "sigaction: ", std::strerror(errno));
  CHECK(prctl(PR_SET_PDEATHSIG, orphan_signal()) == 0, "prctl: ", std::strerror(errno));
  if (getppid() != supervisor) on_orphaned(0);  // it died before it could be asked for
  const int code = body();
  ended = true;
  std::exit(code);
}

// How the child ended, as the exit code of the job. Says so if the child could not.
int verdict(const Supervision& supervision, int status, bool ended, bool asked_to_end) {
  const int lost = static_cast<int>(ExitCode::Lost);
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    if (code != 0 || ended) return code;
    say_lost(supervision, "ended in the middle of the job",
             "something called exit(0) in it, which is a bug");
    return lost;
  }
  const int number = WTERMSIG(status);
  // What the launcher ends when another rank has failed is not the cause.
  if (asked_to_end && (number == SIGTERM || number == SIGKILL || number == SIGINT)) return lost;
  say_lost(supervision, concat("was killed by signal ", number, " (", strsignal(number), ")"),
           number == SIGKILL
               ? "somebody killed it, or the system did because memory ran out (dmesg tells)"
               : "a crash; a core file tells where, if the system keeps them");
  return lost;
}

int watch(const Supervision& supervision, pid_t child, pid_t launcher, const sigset_t& signals,
          const std::atomic<bool>& ended, int64_t marks_before) {
  bool asked_to_end = false, stopped = false;
  double stopped_s = 0, silent_s = 0;
  int64_t marks = marks_before;
  while (true) {
    const int signal = sigtimedwait(&signals, nullptr, &kLook);
    if (signal == SIGTERM || signal == SIGINT) asked_to_end = true;
    int status = 0;
    pid_t changed = 0;
    while ((changed = waitpid(child, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
      if (WIFEXITED(status) || WIFSIGNALED(status))
        return verdict(supervision, status, ended, asked_to_end);
      stopped = WIFSTOPPED(status);
      stopped_s = 0;
    }
    CHECK(changed == 0 || errno == EINTR, "waitpid: ", std::strerror(errno));
    if (getppid() != launcher) {  // nobody is left to end this job
      kill(child, SIGKILL);
      return static_cast<int>(ExitCode::Lost);
    }
    if (signal < 0) (stopped ? stopped_s : silent_s) += kLookSeconds;
    const int64_t marks_now = num_marks();
    if (marks_now != marks || marks_now == marks_before) silent_s = 0;
    marks = marks_now;
    if (stopped_s > supervision.stopped_limit_s) {
      say_lost(supervision,
               concat("was stopped (SIGSTOP) for longer than ", supervision.stopped_limit_s, " s"),
               "the others cannot go on without it; the limit is FERRY_COMM_TIMEOUT_S");
    } else if (silent_s > supervision.silent_limit_s) {
      say_lost(supervision, concat("did not get on for ", supervision.silent_limit_s, " s"),
               "it hangs where nothing ends its wait, in a driver or a library; the limit is 10 x "
               "FERRY_COMM_TIMEOUT_S");
    } else {
      continue;
    }
    kill(child, SIGKILL);
    return static_cast<int>(ExitCode::Lost);
  }
}

}  // namespace

int supervise(const Supervision& supervision, const std::function<int()>& body) {
  share_mark();
  void* memory = mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED, "mmap: ", std::strerror(errno));
  auto& ended = *new (memory) std::atomic<bool>(false);
  std::cout << std::flush;
  std::fflush(nullptr);

  // The rank acts on the launcher's signals; this process only notes that it is to end.
  const sigset_t signals = signals_of({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2});
  sigset_t before;
  CHECK(sigprocmask(SIG_BLOCK, &signals, &before) == 0, "sigprocmask: ", std::strerror(errno));
  const pid_t launcher = getppid(), supervisor = getpid();
  const int64_t marks_before = num_marks();
  const pid_t child = fork();
  if (child < 0)
    fail(ExitCode::Resource, "error: cannot start the process of ", supervision.rank, " on ",
         supervision.host, ": ", std::strerror(errno),
         "\n  why : each rank is two processes, one of which watches the other\n  try : a higher "
         "limit of processes (ulimit -u), or FERRY_SUPERVISE=0");
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    run_rank(supervision, supervisor, ended, body);
  }
  rename_process();
  // The signals stay blocked: one that is pending would end this process with another code.
  return watch(supervision, child, launcher, signals, ended, marks_before);
}

}  // namespace ferry
