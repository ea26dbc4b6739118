#include "app/job.h"

#include <chrono>
#include <csignal>
#include <iostream>
#include <thread>

namespace ferry {
namespace {

// The start of the job's end: of ranks that fail alike, rank 0 is to be heard.
constexpr std::chrono::milliseconds kRankZeroSpeaksFirst{1000};
// The launcher forwards a message before it ends the job.
constexpr std::chrono::milliseconds kMessageTravels{100};

}  // namespace

void print_error(const Error& error, int rank, int size) {
  std::string text = error.what();
  if (!text.starts_with("error")) text = "error: " + text;
  if (size > 1 && error.code() != ExitCode::Usage) text = concat("[rank ", rank, "] ", text);
  std::cerr << text << std::endl;
}

int run_job(const std::function<ExitCode(Runtime&)>& body) {
  std::unique_ptr<Runtime> runtime;
  try {
    runtime = Runtime::start();
  } catch (const Error& error) {  // there is no rank yet to choose who speaks
    print_error(error, 0, 1);
    return static_cast<int>(error.code());
  }
  const auto stop = [&](const Error& error) {
    const int code = static_cast<int>(error.code());
    const bool many = runtime->size() > 1;
    // The launcher's request to end is not a request to save any more.
    std::signal(SIGTERM, SIG_DFL);
    // What every rank throws alike is said once: rank 0 ends the job before the others speak.
    if (runtime->rank() != 0) std::this_thread::sleep_for(kRankZeroSpeaksFirst);
    print_error(error, runtime->rank(), runtime->size());
    if (many) {
      std::this_thread::sleep_for(kMessageTravels);
      runtime->abort(code);
    }
    return code;
  };
  try {
    return static_cast<int>(body(*runtime));
  } catch (const Error& error) {
    return stop(error);
  } catch (const std::exception& error) {
    return stop(Error(ExitCode::Internal, concat("internal error: ", error.what())));
  }
}

}  // namespace ferry
