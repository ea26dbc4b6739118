#include "app/job.h"

#include <chrono>
#include <iostream>
#include <thread>

namespace ferry {
namespace {

// Lets the first failing rank's message out before others, which fail because of it, add theirs.
constexpr std::chrono::milliseconds kLetOthersSpeak{200};

}  // namespace

void print_error(const Error& error, int rank, int size) {
  std::string text = error.what();
  if (!text.starts_with("error")) text = "error: " + text;
  if (size > 1) text = concat("[rank ", rank, "] ", text);
  std::cerr << text << std::endl;
}

int run_job(const std::function<ExitCode(Runtime&)>& body) {
  const std::unique_ptr<Runtime> runtime = Runtime::start();
  const auto stop = [&](const Error& error) {
    const bool alike = error.code() == ExitCode::Usage;
    if (!alike || runtime->rank() == 0)
      print_error(error, alike ? 0 : runtime->rank(), alike ? 1 : runtime->size());
    const int code = static_cast<int>(error.code());
    if (runtime->size() > 1) {
      if (runtime->rank() != 0 || !alike) std::this_thread::sleep_for(kLetOthersSpeak);
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
