#pragma once

// A CPU stream: a bounded queue of tasks and one thread that runs them in order.
//
// Tasks own the tensors they use (they capture them), so hold() has nothing to do. The first task
// that throws makes the stream fail: later tasks are dropped, and events recorded after it, and
// synchronize(), rethrow its error.

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/recording.h"
#include "core/stream.h"

namespace ferry {

class CpuStream final : public Stream {
 public:
  CpuStream(Device& device, std::string name);
  /// Runs what is still queued, then ends the thread.
  ~CpuStream() override;

  /// Appends a task; blocks while the queue is full, at most wait_limit_seconds(). Never call it
  /// from a task of this stream.
  void enqueue(Task task);

  Event record() override;
  std::shared_ptr<const TimeStamp> stamp() override;
  void wait(const Event& event) override;
  void synchronize() override;
  void zero(const Tensor& tensor) override;
  void copy(const Tensor& to, const Tensor& from) override;
  void hold(const Tensor&) override {}
  bool is_captured() const override { return recording_ != nullptr; }

  /// What `body` enqueues here, and on streams that wait for its events, instead of running it; see
  /// capture() in core/graph.h for what it may do.
  std::vector<Task> capture(const std::function<void()>& body);

 private:
  struct Queued {
    Task task;
    bool runs_after_failure;  // events are set even when the work before them failed
  };
  void push(Queued queued);
  void run();
  void wait_captured(const Event& event);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queued> queue_;
  bool closing_ = false;
  std::exception_ptr error_;  // touched by the stream's thread only
  // While captured, by the thread that enqueues.
  std::shared_ptr<Recording> recording_;
  RecordedTasks recorded_;  // that the next task is after
  std::thread thread_;
};

/// An event of host work. Callbacks let a device stream wait for it without a host thread.
class HostEvent final : public EventState {
 public:
  /// `stream` is the name of the stream whose work it ends, for messages.
  explicit HostEvent(std::string stream = "?") : stream_(std::move(stream)) {}
  bool ready() const override;
  void wait_host() const override;
  /// Marks the event ready, with the error of the work before it (or nullptr).
  void set(std::exception_ptr error);
  /// Calls `callback` once the event is ready: at once if it already is.
  void on_ready(std::function<void()> callback);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool ready_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void()>> callbacks_;
  std::string stream_;
};

CpuStream& as_cpu(Stream& stream);
/// Enqueues on a stream that must be a CPU stream.
void enqueue_cpu(Stream& stream, Task task);

}  // namespace ferry
