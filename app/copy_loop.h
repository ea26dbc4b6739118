#pragma once

// A copy that goes on in the background until it is stopped, as traffic beside something measured.

#include <atomic>
#include <exception>
#include <memory>
#include <thread>

#include "core/tensor.h"

namespace ferry {

class CopyLoop {
 public:
  /// Copies `from` to `to` again and again on a stream of its own of `device`, which must reach
  /// both, from a thread of its own; two copies are enqueued at any time.
  CopyLoop(Device& device, Tensor to, Tensor from);
  ~CopyLoop();
  CopyLoop(const CopyLoop&) = delete;
  CopyLoop& operator=(const CopyLoop&) = delete;

  /// Lets the last copies end; bytes per second from the first to the last. Throws the error of a
  /// copy that failed. Once.
  double stop();

 private:
  void run();

  std::unique_ptr<Stream> stream_;
  Tensor to_, from_;
  std::atomic<bool> stopping_ = false;
  double rate_ = 0;           // after the thread has ended
  std::exception_ptr error_;  // likewise
  std::thread thread_;        // uses all of the above
};

}  // namespace ferry
