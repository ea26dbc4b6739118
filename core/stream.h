#pragma once

// When a tensor is ready. Work is enqueued on streams and runs in the order of its stream; an Event
// marks a point of one stream that another stream, or the host, can wait for.
//
// The rule of the whole project: to use a tensor on another stream, make that stream wait for the
// event after which it is ready, and hold the tensor there.
//
// A CPU stream is a bounded queue with a thread of its own, so a forgotten wait() is a data race
// that ThreadSanitizer names, without a GPU. See core/stream_cpu.h and core/stream_cuda.h.

#include <functional>
#include <memory>
#include <string>

namespace ferry {

class Device;
class Tensor;

/// What an Event points to. Implemented by each kind of stream.
class EventState {
 public:
  virtual ~EventState() = default;
  /// True when the work before the event is done (or has failed).
  virtual bool ready() const = 0;
  /// Blocks the calling thread until then; throws the error of that work, if it had one.
  virtual void wait_host() const = 0;
};

/// A point in a stream; cheap to copy. A default Event is always ready.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {}
  bool ready() const { return !state_ || state_->ready(); }
  void wait_host() const {
    if (state_) state_->wait_host();
  }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

/// The time at which a stream reached a point of its work, by the clock of its device.
class TimeStamp {
 public:
  virtual ~TimeStamp() = default;
  /// Seconds from `earlier`, a stamp of a stream of the same device. Waits for both points.
  virtual double seconds_since(const TimeStamp& earlier) const = 0;
};

class Stream {
 public:
  explicit Stream(Device& device, std::string name) : device_(device), name_(std::move(name)) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  const std::string& name() const { return name_; }

  /// An event after all work enqueued so far.
  virtual Event record() = 0;
  /// The same, for a thread that other work of the device waits for: looking at this event takes no
  /// call of the device's driver, which may itself be waiting for the device.
  virtual Event record_for_host() { return record(); }
  /// The time after all work enqueued so far.
  virtual std::shared_ptr<const TimeStamp> stamp() = 0;
  /// Work enqueued from now on starts after the event. Returns at once. Events of any device.
  virtual void wait(const Event& event) = 0;
  /// Blocks the host until all work enqueued so far is done; throws the error of that work.
  virtual void synchronize() = 0;
  /// Sets all bytes of the tensor to zero.
  virtual void zero(const Tensor& tensor) = 0;
  /// Copies between tensors of equal dtype and number of elements, on any devices that this stream
  /// reaches (a CUDA stream: host and device). Holds both here; reads or writes host memory later,
  /// so the host must wait for an event before it touches that memory. Between two host memories a
  /// CUDA stream makes the calling thread wait: use a CPU stream for that.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;
  /// Keeps the tensor's memory from being reused before the work enqueued here so far is done.
  virtual void hold(const Tensor& tensor) = 0;
  /// True while what is enqueued here becomes a Graph (core/graph.h): then no work is done, so
  /// nothing may wait for it or ask how far it is.
  virtual bool is_captured() const = 0;

 private:
  Device& device_;
  std::string name_;
};

}  // namespace ferry
