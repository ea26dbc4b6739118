#pragma once

// A device that does nothing and writes down what it is asked to do, and a group whose other ranks
// are not there: what the executor of one rank does, call by call.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/comm/group.h"
#include "core/device.h"

namespace ferry::testing {

/// Lines "stream: what"; an event is named by what its stream was last asked to do before it.
class Trace {
 public:
  void add(const std::string& stream, const std::string& what) {
    lines_.push_back(stream + ": " + what);
    last_[stream] = what;
  }
  const std::string& last(const std::string& stream) { return last_[stream]; }
  /// "output 2" is the third memory of this name.
  std::string number(std::string_view name) {
    return concat(name, ' ', numbers_[std::string(name)]++);
  }
  const std::vector<std::string>& lines() const { return lines_; }
  void clear() { *this = Trace(); }

 private:
  std::vector<std::string> lines_;
  std::map<std::string, std::string> last_;
  std::map<std::string, int> numbers_;
};

class TracedEvent final : public EventState {
 public:
  explicit TracedEvent(std::string after) : after_(std::move(after)) {}
  bool ready() const override { return true; }
  void wait_host() const override {}
  const std::string& after() const { return after_; }

 private:
  std::string after_;
};

class TracedStream final : public Stream {
 public:
  TracedStream(Device& device, std::string name, Trace& trace)
      : Stream(device, std::move(name)), trace_(trace) {}
  Event record() override {
    return Event(std::make_shared<TracedEvent>(name() + "'s " + trace_.last(name())));
  }
  void wait(const Event& event) override {
    trace_.add(name(), "wait for " + dynamic_cast<const TracedEvent&>(*event.state()).after());
  }
  void hold(const Tensor&) override { trace_.add(name(), "hold"); }
  std::shared_ptr<const TimeStamp> stamp() override { return nullptr; }
  void synchronize() override {}
  void zero(const Tensor&) override {}
  void copy(const Tensor&, const Tensor&) override {}
  bool is_captured() const override { return false; }

 private:
  Trace& trace_;
};

/// Memory that is not there.
class TracedStorage final : public Storage {
 public:
  TracedStorage(int64_t bytes, std::string stream, std::string name, Trace& trace)
      : Storage(nullptr, bytes, true),
        stream_(std::move(stream)),
        name_(std::move(name)),
        trace_(trace) {
    trace_.add(stream_, "new " + name_);
  }
  ~TracedStorage() override { trace_.add(stream_, "free " + name_); }
  const std::string& name() const { return name_; }

 private:
  std::string stream_, name_;
  Trace& trace_;
};

class TracedDevice final : public Device {
 public:
  explicit TracedDevice(Trace& trace) : trace_(trace) {}
  DeviceKind kind() const override { return DeviceKind::Cpu; }
  std::string name() const override { return "traced"; }
  std::unique_ptr<Stream> make_stream(std::string name) override {
    return std::make_unique<TracedStream>(*this, std::move(name), trace_);
  }
  std::shared_ptr<Storage> allocate(Stream& stream, std::string_view name, int64_t bytes) override {
    return std::make_shared<TracedStorage>(bytes, stream.name(), trace_.number(name), trace_);
  }
  std::shared_ptr<Storage> allocate_host(std::string_view, int64_t) override { return nullptr; }
  int64_t total_bytes() const override { return 0; }
  int64_t free_bytes() const override { return 0; }

 private:
  Trace& trace_;
};

/// Messages alone, and the groups of two that a pipeline makes of its ranks.
class TracedGroup final : public Group {
 public:
  TracedGroup(int rank, int size, std::string name, Trace& trace)
      : rank_(rank), size_(size), name_(std::move(name)), trace_(trace) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  void send(Stream& stream, const Tensor& tensor, int) override { add("send ", stream, tensor); }
  void receive(Stream& stream, const Tensor& tensor, int) override {
    add("receive ", stream, tensor);
  }
  /// `color` is the first of the two.
  std::unique_ptr<Group> split(int color, const std::string& name) override {
    if (color < 0) return nullptr;
    return std::make_unique<TracedGroup>(color == rank_ ? 0 : 1, 2, name, trace_);
  }

  void all_reduce(Stream&, const Tensor&, ReduceOp) override {}
  void all_gather(Stream&, const Tensor&, const Tensor&) override {}
  void reduce_scatter(Stream&, const Tensor&, const Tensor&) override {}
  void broadcast(Stream&, const Tensor&, int) override {}
  void all_to_all(Stream&, const Tensor&, std::span<const int64_t>, const Tensor&,
                  std::span<const int64_t>) override {}

 private:
  void add(const char* what, Stream& stream, const Tensor& tensor) {
    trace_.add(stream.name(), what + dynamic_cast<TracedStorage&>(*tensor.storage()).name());
  }

  int rank_, size_;
  std::string name_;
  Trace& trace_;
};

}  // namespace ferry::testing
