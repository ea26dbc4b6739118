#include "app/stop_request.h"

#include <csignal>

#include "core/check.h"

namespace ferry {
namespace {

volatile std::sig_atomic_t save_signals = 0;
volatile std::sig_atomic_t stop_signals = 0;

void on_signal(int signal) {
  if (signal == SIGUSR1) {
    save_signals = 1;
    return;
  }
  stop_signals = 1;
  if (signal == SIGTERM || signal == SIGINT) std::signal(signal, SIG_DFL);
}

// True if the file was there; it is removed, so that it acts once.
bool take_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::remove(path, error);
}

}  // namespace

StopRequest::StopRequest(std::filesystem::path run_dir, std::optional<double> time_limit_minutes)
    : run_dir_(std::move(run_dir)) {
  if (time_limit_minutes)
    deadline_ = std::chrono::steady_clock::now() +
                std::chrono::milliseconds(static_cast<int64_t>(*time_limit_minutes * 60e3));
  save_signals = 0;
  stop_signals = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT})
    CHECK(sigaction(signal, &action, nullptr) == 0, "sigaction(", signal, ")");
}

std::optional<double> StopRequest::seconds_left() const {
  if (!deadline_) return std::nullopt;
  return std::chrono::duration<double>(*deadline_ - std::chrono::steady_clock::now()).count();
}

Request StopRequest::poll(bool watches_files) {
  Request request;
  if (save_signals != 0) {  // cleared only when seen: a signal that comes in between is kept
    save_signals = 0;
    request.save = true;
  }
  request.stop = stop_signals != 0;
  if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) request.stop = true;
  if (watches_files) {
    request.save |= take_file(run_dir_ / "SAVE");
    request.stop |= take_file(run_dir_ / "STOP");
  }
  return request;
}

}  // namespace ferry
