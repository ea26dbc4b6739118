#include "app/background_save.h"

#include <chrono>
#include <utility>

#include "checkpoint/agreement.h"
#include "core/check.h"
#include "core/seconds_since.h"

namespace ferry {

BackgroundSave::BackgroundSave(std::unique_ptr<Control> control) : control_(std::move(control)) {}

BackgroundSave::~BackgroundSave() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundSave::begin(SaveRequest request, Event copied, std::function<void()> at_end) {
  CHECK(!in_flight(), "a save is in flight");
  outcome_ = {};
  busy_ = true;
  thread_ = std::thread(
      [this, request = std::move(request), copied = std::move(copied), at_end = std::move(at_end)] {
        try {
          run(request, copied);
        } catch (...) {  // no exception leaves a thread: finish() tells of it
          outcome_.error = std::current_exception();
        }
        at_end();
        busy_ = false;
      });
}

void BackgroundSave::run(const SaveRequest& request, const Event& copied) {
  const auto start = std::chrono::steady_clock::now();
  gather_together(*control_, "copy the state to save", [&] {
    copied.wait_host();
    return std::string();
  });
  outcome_.copy_seconds = seconds_since(start);
  outcome_.report = save_checkpoint(request, *control_);
}

SaveOutcome BackgroundSave::finish() {
  CHECK(in_flight(), "no save is in flight");
  thread_.join();
  return std::exchange(outcome_, {});
}

}  // namespace ferry
