#include "app/copy_loop.h"

#include <utility>

namespace ferry {

CopyLoop::CopyLoop(Device& device, Tensor to, Tensor from)
    : stream_(device.make_stream("copy loop")),
      to_(std::move(to)),
      from_(std::move(from)),
      thread_([this] { run(); }) {}

CopyLoop::~CopyLoop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void CopyLoop::run() {
  try {
    const auto start = stream_->stamp();
    int64_t num_copies = 0;
    Event previous;
    do {
      stream_->copy(to_, from_);
      const Event done = stream_->record();
      previous.wait_host();
      previous = done;
      ++num_copies;
    } while (!stopping_);
    const double seconds = stream_->stamp()->seconds_since(*start);
    stream_->synchronize();
    rate_ = static_cast<double>(num_copies) * static_cast<double>(from_.bytes()) / seconds;
  } catch (...) {
    error_ = std::current_exception();
  }
}

double CopyLoop::stop() {
  CHECK(thread_.joinable(), "a copy loop is stopped once");
  stopping_ = true;
  thread_.join();
  if (error_) std::rethrow_exception(error_);
  return rate_;
}

}  // namespace ferry
