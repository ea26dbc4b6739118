#include "app/job.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <thread>

#include "app/supervisor.h"
#include "core/mark.h"
#include "core/wait.h"

namespace ferry {
namespace {

using Seconds = std::chrono::duration<double>;

// How long a rank waits before it speaks. Of ranks that fail alike, rank 0 is to be heard, and of
// others the first: it ends the job before the next one speaks. That a peer is gone is heard after
// whoever knows why it is gone.
Seconds silence_before(const Error& error, int rank, int size) {
  Seconds silence{0};
  if (rank > 0) silence += Seconds(1 + static_cast<double>(rank) / size);
  if (size > 1 && error.code() == ExitCode::Lost) silence += Seconds(2);
  return silence;
}

// The launcher forwards a message before it ends the job.
constexpr std::chrono::milliseconds kMessageTravels{100};
// A rank that can say itself what it waits for has said it then, and ended the job.
constexpr double kPatience = 10;

Error with_ranks_behind(const Error& error) {
  const std::string behind = error.code() == ExitCode::Lost ? ranks_behind() : "";
  if (behind.empty()) return error;
  return Error(error.code(), concat(error.what(), "\n  behind: ", behind));
}

int run_rank(const std::function<ExitCode(Runtime&)>& body) {
  std::unique_ptr<Runtime> runtime;
  try {
    runtime = Runtime::start();
  } catch (const Error& error) {  // there is no rank yet to choose who speaks
    print_error(error, 0, 1);
    return static_cast<int>(error.code());
  }
  std::atomic<bool> is_said = false;  // why the job ends: by one thread
  const auto stop = [&](const Error& thrown) {
    const Error error = with_ranks_behind(thrown);  // before the others go on or end
    const int code = static_cast<int>(error.code());
    const bool many = runtime->size() > 1;
    // The launcher's request to end is not a request to save any more.
    std::signal(SIGTERM, SIG_DFL);
    std::this_thread::sleep_for(silence_before(error, runtime->rank(), runtime->size()));
    print_error(error, runtime->rank(), runtime->size(), runtime->host_name());
    if (many) {
      std::this_thread::sleep_for(kMessageTravels);
      runtime->abort(code);
    }
    return code;
  };
  std::shared_ptr<void> watch;
  if (runtime->size() > 1)
    watch = watch_for_stuck_host(kPatience, [&](const Error& error) {
      if (!is_said.exchange(true)) stop(error);
    });
  const auto stop_here = [&](const Error& error) {
    while (is_said.exchange(true)) std::this_thread::sleep_for(kMessageTravels);
    return stop(error);
  };
  try {
    return static_cast<int>(body(*runtime));
  } catch (const Error& error) {
    return stop_here(error);
  } catch (const std::exception& error) {
    return stop_here(Error(ExitCode::Internal, concat("internal error: ", error.what())));
  }
}

bool wants_supervisor() {
  const char* wanted = std::getenv("FERRY_SUPERVISE");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

}  // namespace

void print_error(const Error& error, int rank, int size, const std::string& host) {
  std::string text = error.what();
  if (!text.starts_with("error")) text = "error: " + text;
  // A mistake of the user that all ranks share is said by rank 0.
  if (size > 1 && (error.code() != ExitCode::Usage || rank > 0))
    text = concat("[rank ", rank, "] ", text, "\n  rank: ", rank, " of ", size, " on ", host, ", ",
                  mark_text());
  std::cerr << text << std::endl;
}

int run_job(const std::function<ExitCode(Runtime&)>& body) {
  try {
    const Launch launch = this_launch();
    if (!launch.by_launcher || !wants_supervisor()) return run_rank(body);
    Supervision supervision;
    const std::string number = launch.rank < 0 ? "?" : std::to_string(launch.rank);
    supervision.rank =
        concat("rank ", number, launch.num_ranks > 0 ? concat(" of ", launch.num_ranks) : "");
    if (launch.num_ranks != 1) supervision.prefix = concat("[rank ", number, "] ");
    supervision.host = this_host();
    supervision.stopped_limit_s = comm_timeout_seconds();
    supervision.silent_limit_s = hang_limit_seconds();
    return supervise(supervision, [&] { return run_rank(body); });
  } catch (const Error& error) {
    print_error(error, 0, 1);
    return static_cast<int>(error.code());
  }
}

}  // namespace ferry
