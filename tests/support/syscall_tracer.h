#pragma once

// Runs a function in a child process under ptrace(2) and lets one of its system calls go wrong.
// Only calls that name a file below a chosen folder count, so what the C++ runtime does elsewhere
// does not shift the numbers. Threads and processes that the child starts are followed. Linux on
// x86-64. The parent must have no other child that it wants to wait for.

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/syscall_table.h"

namespace ferry::testing {

enum class SyscallFault {
  None,
  Kill,        // SIGKILL instead of the call
  Fail,        // the call is not made and returns -1 with `error`
  ShortWrite,  // write and pwrite64 get half of their bytes; other calls are left alone
};

struct SyscallPlan {
  SyscallFault fault = SyscallFault::None;
  int at = -1;  // which of the counted calls, from 0
  int error = 0;
};

struct TracedCall {
  std::string name;
  std::filesystem::path path;  // the first, where there are two
  unsigned long long arguments[3] = {};
};

struct TracedRun {
  std::vector<TracedCall> calls;  // the counted ones
  bool is_hit = false;            // the planned call came, and the fault could be made
  int exit_code = -1;             // of the child; -1 if a signal ended it
  int signal = 0;                 // that signal
};

class SyscallTracer {
 public:
  /// Counts calls on files at or below `folder` (absolute).
  SyscallTracer(std::filesystem::path folder, SyscallPlan plan)
      : folder_(std::move(folder)), plan_(plan) {}

  /// Runs `body` in a child, which ends with its result as exit code and without destructors of
  /// this process. Throws std::runtime_error where tracing is refused.
  TracedRun run(const std::function<int()>& body) {
    child_ = ::fork();
    if (child_ < 0) throw std::runtime_error("cannot fork: " + reason());
    if (child_ == 0) {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kRefused);
      ::raise(SIGSTOP);
      ::_exit(body());
    }
    int status = 0;
    if (::waitpid(child_, &status, __WALL) != child_ || !WIFSTOPPED(status)) {
      throw std::runtime_error("this machine does not let a process trace its child");
    }
    const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE |
                         PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
    require(::ptrace(PTRACE_SETOPTIONS, child_, nullptr, options) == 0);
    go_on(child_, 0);
    while (follow()) {
    }
    return std::move(run_);
  }

 private:
  static constexpr int kRefused = 97;

  static std::string reason() { return std::strerror(errno); }
  static void require(bool succeeded) {
    if (!succeeded) throw std::runtime_error("ptrace failed: " + reason());
  }

  /// A thread may be gone by now, because its process was killed.
  static void go_on(pid_t thread, int signal) {
    if (::ptrace(PTRACE_SYSCALL, thread, nullptr, signal) != 0) require(errno == ESRCH);
  }

  /// Waits for one stop or end; false after the end of the child itself.
  bool follow() {
    int status = 0;
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0) require(errno == EINTR);
    if (thread < 0) return true;
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (thread != child_) return true;
      if (WIFEXITED(status)) run_.exit_code = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) run_.signal = WTERMSIG(status);
      return false;
    }
    const int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
      at_call(thread);
      go_on(thread, 0);
    } else {
      // New threads begin with SIGSTOP, and events come as SIGTRAP; the rest is for the child.
      const bool is_ours = signal == SIGSTOP || signal == SIGTRAP;
      go_on(thread, is_ours ? 0 : signal);
    }
    return true;
  }

  void at_call(pid_t thread) {
    user_regs_struct registers{};
    if (::ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0) return;
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) <= 0) return;
    if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
      if (thread != failing_) return;
      failing_ = 0;
      registers.rax = static_cast<unsigned long long>(-static_cast<int64_t>(plan_.error));
      require(::ptrace(PTRACE_SETREGS, thread, nullptr, &registers) == 0);
      return;
    }
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return;
    const FileCall* call = find_file_call(static_cast<int64_t>(info.entry.nr));
    if (call == nullptr) return;
    const TracedCall traced{call->name,
                            path_of(thread, *call, info),
                            {info.entry.args[0], info.entry.args[1], info.entry.args[2]}};
    if (!is_counted(traced.path)) return;
    run_.calls.push_back(traced);
    if (static_cast<int>(run_.calls.size()) - 1 == plan_.at) inject(thread, traced, registers);
  }

  void inject(pid_t thread, const TracedCall& call, user_regs_struct registers) {
    constexpr unsigned long long kNoCall = ~0ull;
    switch (plan_.fault) {
      case SyscallFault::None:
        return;
      case SyscallFault::Kill:
        registers.orig_rax = kNoCall;
        require(::kill(child_, SIGKILL) == 0);
        break;
      case SyscallFault::Fail:
        registers.orig_rax = kNoCall;
        failing_ = thread;
        break;
      case SyscallFault::ShortWrite:
        if (!is_write(call.name) || registers.rdx < 2) return;
        registers.rdx /= 2;
        break;
    }
    run_.is_hit = true;
    if (::ptrace(PTRACE_SETREGS, thread, nullptr, &registers) != 0) require(errno == ESRCH);
  }

  bool is_counted(const std::filesystem::path& path) const {
    const auto mismatch =
        std::mismatch(folder_.begin(), folder_.end(), path.begin(), path.end()).first;
    return mismatch == folder_.end();
  }

  static std::filesystem::path path_of(pid_t thread, const FileCall& call,
                                       const __ptrace_syscall_info& info) {
    const auto* arguments = info.entry.args;
    switch (call.argument) {
      case FileArgument::Descriptor:
        return path_of_descriptor(thread, static_cast<int>(arguments[0]));
      case FileArgument::Path:
        return read_text(thread, arguments[0]);
      case FileArgument::PathAt:
        break;
    }
    const std::filesystem::path path = read_text(thread, arguments[1]);
    const int descriptor = static_cast<int>(arguments[0]);
    return path.empty() ? path_of_descriptor(thread, descriptor) : path;
  }

  static std::filesystem::path path_of_descriptor(pid_t thread, int descriptor) {
    std::error_code none;  // a closed descriptor has no path
    return std::filesystem::read_symlink(
        "/proc/" + std::to_string(thread) + "/fd/" + std::to_string(descriptor), none);
  }

  /// A text in the memory of the child, read page by page as far as it goes.
  static std::string read_text(pid_t thread, unsigned long long address) {
    constexpr unsigned long long kPage = 4096;
    std::string text;
    while (text.size() < PATH_MAX) {
      char page[kPage];
      const size_t bytes = kPage - address % kPage;
      const iovec to{page, bytes};
      const iovec from{reinterpret_cast<void*>(address), bytes};
      const ssize_t got = ::process_vm_readv(thread, &to, 1, &from, 1, 0);
      if (got <= 0) break;
      const size_t length = ::strnlen(page, static_cast<size_t>(got));
      text.append(page, length);
      if (length < static_cast<size_t>(got)) break;
      address += static_cast<unsigned long long>(got);
    }
    return text;
  }

  std::filesystem::path folder_;
  SyscallPlan plan_;
  pid_t child_ = 0;
  pid_t failing_ = 0;  // the thread whose current call is to return an error
  TracedRun run_;
};

/// Why this machine allows no tracing; empty where it does.
inline std::string tracing_defect() {
  try {
    SyscallTracer tracer("/proc/self/status", {SyscallFault::Fail, 0, ENOSPC});
    const TracedRun run = tracer.run(
        [] { return ::access("/proc/self/status", R_OK) == -1 && errno == ENOSPC ? 0 : 1; });
    return run.exit_code == 0 ? "" : "ptrace cannot change system calls here";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

}  // namespace ferry::testing
