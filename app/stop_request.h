#pragma once

// Requests to save or stop that reach a run from outside: signals, files, and the time limit.
//
//   SIGUSR1, file SAVE          save at the next step and go on
//   SIGTERM, SIGUSR2, SIGINT,
//   file STOP, time limit       save at the next step and stop (exit 76)
// Handlers only set a flag. A second SIGTERM or SIGINT ends the process at once.

#include <chrono>
#include <filesystem>
#include <optional>

namespace ferry {

struct Request {
  bool save = false;
  bool stop = false;
};

class StopRequest {
 public:
  /// Installs the signal handlers of this process.
  StopRequest(std::filesystem::path run_dir, std::optional<double> time_limit_minutes);

  /// What was asked for since the last call. Only `watches_files` looks for STOP and SAVE (one rank
  /// is enough) and removes those it has seen.
  Request poll(bool watches_files);
  /// Until the time limit, if there is one; less than 0 after it.
  std::optional<double> seconds_left() const;

 private:
  std::filesystem::path run_dir_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace ferry
