#pragma once

// A run with two good checkpoints, of which each trial gets a copy. What meets the fault happens in
// a traced child and tells its outcome through shared memory; what is left is examined here.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <string>

#include "checkpoint/latest.h"
#include "tests/checkpoint/saved_runs.h"
#include "tests/support/syscall_tracer.h"

namespace ferry::testing {

/// Every point where a fault can be, or with a stride that keeps the tests short.
inline bool is_long() { return std::getenv("FERRY_LONG_FAULTS") != nullptr; }
inline int stride(int short_stride) { return is_long() ? 1 : short_stride; }
/// Where the short form begins, so that not all of its tests try the same points.
inline int first_point(int short_first) { return is_long() ? 0 : short_first; }

/// What a child did, written by it step by step, so that it survives its death.
struct Outcome {
  bool is_acknowledged = false;  // the call returned
  bool is_storage_error = false;
  int64_t step = -1;  // of the checkpoint that was loaded
  bool is_equal = false;
  char text[4000] = "";  // of the error, the warnings or the rejected checkpoints

  std::string said() const { return text; }
  void say(const std::string& said) {
    const size_t length = std::min(said.size(), sizeof(text) - 1);
    std::memcpy(text, said.data(), length);
    text[length] = 0;
  }
};

/// An Outcome that parent and child share.
class SharedOutcome {
 public:
  SharedOutcome() {
    void* memory =
        ::mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    outcome_ = new (memory) Outcome;
  }
  ~SharedOutcome() { ::munmap(outcome_, sizeof(Outcome)); }
  SharedOutcome(const SharedOutcome&) = delete;
  SharedOutcome& operator=(const SharedOutcome&) = delete;
  Outcome* operator->() { return outcome_; }
  Outcome& operator*() { return *outcome_; }

 private:
  Outcome* outcome_;
};

inline SampleModel traced_model(int64_t step) {
  SampleModel model(static_cast<uint32_t>(step));
  model.tensors().resize(4);
  SampleTensor& large = model.tensors().front();  // several chunks and whole blocks
  large.shape = {50, 60};
  large.bytes.assign(50 * 60 * 4, static_cast<char>(step));
  return model;
}

inline SaveReport save_traced_model(const Path& run_dir, int64_t step, int64_t attempt,
                                    FileSystem& file_system) {
  SaveOptions options;
  options.step = step;
  options.attempt = attempt;
  options.keep = 2;  // so that the third save also deletes
  options.chunk_bytes = 4096;
  options.file_system = &file_system;
  return save_solo(run_dir, traced_model(step), options);
}

/// A run with checkpoints of steps 10 and 20, and a second start of it.
class TracedTrial {
 public:
  TracedTrial() {
    std::filesystem::copy(prepared(), run_.path(), std::filesystem::copy_options::recursive);
  }

  /// The child saves `step`.
  TracedRun save(const SyscallPlan& plan, int64_t step = 30) {
    return in_child(plan, [&] {
      const SaveReport report = save_traced_model(run_.path(), step, 2, posix_file_system());
      outcome_->is_acknowledged = true;
      std::string warnings;
      for (const std::string& warning : report.warnings) warnings += warning + "\n";
      outcome_->say(warnings);
    });
  }

  /// The child begins an attempt, as a start does.
  TracedRun begin(const SyscallPlan& plan) {
    return in_child(plan, [&] {
      testing::begin(run_.path());
      outcome_->is_acknowledged = true;
    });
  }

  /// The child finds the newest checkpoint and loads it.
  TracedRun load(const SyscallPlan& plan) {
    return in_child(plan, [&] {
      SoloControl control;
      const Latest latest = find_latest(run_.path(), control);
      std::string rejected;
      for (const Rejected& one : latest.rejected) rejected += one.reason + "\n";
      outcome_->say(rejected);
      if (!latest.checkpoint) return;
      outcome_->step = latest.checkpoint->step();
      outcome_->is_equal = holds(*latest.checkpoint, traced_model(outcome_->step));
      outcome_->is_acknowledged = true;
    });
  }

  Outcome& outcome() { return *outcome_; }
  const Path path() const { return run_.path(); }

  /// A new start: every published checkpoint is whole, and holds what was saved; the newest is
  /// returned. Then the run saves once more.
  int64_t newest_after_restart() {
    FaultyFileSystem unsynced;
    const int64_t attempt = testing::begin(run_.path(), unsynced);
    for (const int64_t step : list_steps(unsynced, run_.path())) {
      const Checkpoint checkpoint =
          Checkpoint::open(checkpoint_folder(run_.path()) / step_directory_name(step));
      checkpoint.verify();
      EXPECT_TRUE(holds(checkpoint, traced_model(step))) << step;
    }
    SoloControl control;
    const Latest latest = find_latest(run_.path(), control);
    EXPECT_TRUE(latest.unfinished.empty() && latest.rejected.empty());
    const int64_t newest = latest.checkpoint ? latest.checkpoint->step() : -1;
    save_traced_model(run_.path(), 40, attempt, unsynced);
    const Latest next = find_latest(run_.path(), control);
    EXPECT_TRUE(next.checkpoint && next.checkpoint->step() == 40);
    EXPECT_TRUE(next.checkpoint && holds(*next.checkpoint, traced_model(40)));
    return newest;
  }

 private:
  static const Path& prepared() {
    static const TempDir run;
    static const Path path = [] {
      FaultyFileSystem unsynced;
      testing::begin(run.path(), unsynced);
      save_traced_model(run.path(), 10, 1, unsynced);
      testing::begin(run.path(), unsynced);
      save_traced_model(run.path(), 20, 2, unsynced);
      return run.path();
    }();
    return path;
  }

  TracedRun in_child(const SyscallPlan& plan, const std::function<void()>& body) {
    return SyscallTracer(run_.path(), plan).run([&] {
      try {
        body();
        return 0;
      } catch (const Error& error) {
        outcome_->is_storage_error = error.code() == ExitCode::Storage;
        outcome_->say(error.what());
      } catch (const std::exception& error) {
        outcome_->say(error.what());
      }
      return 1;
    });
  }

  TempDir run_;
  SharedOutcome outcome_;
};

/// The calls that something makes without a fault, as the numbers of the faults to come.
inline std::vector<TracedCall> calls_of(
    const std::function<TracedRun(TracedTrial&, const SyscallPlan&)>& act) {
  TracedTrial trial;
  const TracedRun run = act(trial, {});
  EXPECT_EQ(run.exit_code, 0) << trial.outcome().text;
  return run.calls;
}

/// Whether nothing is lost if the call fails and nobody hears of it: a close after reading; opening
/// past the page cache, for which the page cache stands in; and the look that HDF5 takes at a file
/// before it opens it for writing.
inline bool may_fail_silently(const TracedCall& call) {
  constexpr unsigned long long kMakes = O_CREAT | O_TRUNC;
  if (call.name == "openat") return (call.arguments[2] & kMakes) == 0;
  if (call.name == "newfstatat") return static_cast<int>(call.arguments[0]) != AT_FDCWD;
  return call.name == "close";
}

/// "pwrite64 shard-00000.h5"
inline std::string name_of(const TracedCall& call) {
  return call.name + " " + call.path.filename().native();
}

}  // namespace ferry::testing
