#include "core/stream_cpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/check.h"
#include "core/tensor.h"
#include "core/wait.h"

namespace ferry {
namespace {
// Long enough that the host runs well ahead of the work, short enough to bound what tasks hold.
constexpr size_t kMaxQueued = 512;

// Waits for `condition` under the lock, up to the limit.
template <class Condition>
void wait_for(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
              const std::string& stream, Condition condition) {
  const std::chrono::duration<double> limit(wait_limit_seconds());
  if (!changed.wait_for(lock, limit, condition))
    fail_wait(concat("stream '", stream, "'"), limit.count());
}

class HostTimeStamp final : public TimeStamp {
 public:
  double seconds_since(const TimeStamp& earlier) const override {
    const auto* start = dynamic_cast<const HostTimeStamp*>(&earlier);
    CHECK(start != nullptr, "stamps of two kinds of devices");
    return std::chrono::duration<double>(time() - start->time()).count();
  }

  std::chrono::steady_clock::time_point at;  // valid after `reached`
  Event reached;

 private:
  std::chrono::steady_clock::time_point time() const {
    reached.wait_host();
    return at;
  }
};
}  // namespace

CpuStream::CpuStream(Device& device, std::string name)
    : Stream(device, std::move(name)), thread_([this] { run(); }) {}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CpuStream::enqueue(Task task) {
  if (recording_ == nullptr) return push({std::move(task), false});
  recording_->add(*this, std::move(task));
  ++recorded_[this];
}

void CpuStream::push(Queued queued) {
  CHECK(std::this_thread::get_id() != thread_.get_id(), "a task of stream '", name(),
        "' enqueues on its own stream");
  std::unique_lock lock(mutex_);
  wait_for(changed_, lock, name(), [this] { return queue_.size() < kMaxQueued; });
  queue_.push_back(std::move(queued));
  changed_.notify_all();
}

void CpuStream::run() {
  while (true) {
    Queued next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
      changed_.notify_all();
    }
    if (error_ && !next.runs_after_failure) continue;
    try {
      next.task();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
}

Event CpuStream::record() {
  if (is_captured()) return Event(std::make_shared<RecordedEvent>(recording_, recorded_));
  auto state = std::make_shared<HostEvent>(name());
  push({[this, state] { state->set(error_); }, true});
  return Event(state);
}

std::shared_ptr<const TimeStamp> CpuStream::stamp() {
  CHECK(!is_captured(), "a time of stream '", name(), "', whose work is recorded and not done");
  auto stamp = std::make_shared<HostTimeStamp>();
  push({[stamp] { stamp->at = std::chrono::steady_clock::now(); }, true});
  stamp->reached = record();
  return stamp;
}

void CpuStream::wait(const Event& event) {
  if (!event.state()) return;
  if (is_captured() || dynamic_cast<const RecordedEvent*>(event.state().get()) != nullptr)
    return wait_captured(event);
  enqueue([event] { event.wait_host(); });
}

// The order of the calls is kept anyway; this is what CUDA would make of them.
void CpuStream::wait_captured(const Event& event) {
  const auto* recorded = dynamic_cast<const RecordedEvent*>(event.state().get());
  CHECK(recorded != nullptr, "stream '", name(), "', whose work is recorded, waits for other work");
  CHECK(!recorded->recording->has_ended(), "stream '", name(), "' waits for work of a graph");
  CHECK(recording_ == nullptr || recording_ == recorded->recording, "stream '", name(),
        "' waits for work of another graph");
  if (recording_ == nullptr) {
    recording_ = recorded->recording;
    recording_->joined_by(*this);
  }
  for (const auto& [stream, num_tasks] : recorded->after)
    recorded_[stream] = std::max(recorded_[stream], num_tasks);
}

std::vector<Task> CpuStream::capture(const std::function<void()>& body) {
  CHECK(!is_captured(), "stream '", name(), "' is captured twice");
  const auto recording = std::make_shared<Recording>(name());
  recording_ = recording;
  recording->joined_by(*this);
  const auto leave = [&] {
    recording->end();
    for (CpuStream* stream : recording->streams()) {
      stream->recording_.reset();
      stream->recorded_.clear();
    }
  };
  try {
    body();
    for (const auto& [stream, num_tasks] : recording->num_tasks())
      CHECK(recorded_[stream] == num_tasks, "stream '", name(), "' does not wait for ",
            num_tasks - recorded_[stream], " tasks that its graph has of stream '", stream->name(),
            "'");
  } catch (...) {
    leave();
    throw;
  }
  leave();
  return std::move(recording->tasks());
}

void CpuStream::zero(const Tensor& tensor) {
  CHECK(tensor.on_host(), "stream '", name(), "' cannot reach this tensor");
  enqueue([tensor] { std::memset(tensor.raw(), 0, static_cast<size_t>(tensor.bytes())); });
}

void CpuStream::copy(const Tensor& to, const Tensor& from) {
  CHECK(to.on_host() && from.on_host(), "stream '", name(), "' cannot reach these tensors");
  CHECK(to.dtype() == from.dtype() && to.numel() == from.numel(), "copy of ", from.shape(), " to ",
        to.shape());
  enqueue([to, from] { std::memcpy(to.raw(), from.raw(), static_cast<size_t>(to.bytes())); });
}

void CpuStream::synchronize() { record().wait_host(); }

bool HostEvent::ready() const {
  std::lock_guard lock(mutex_);
  return ready_;
}

void HostEvent::wait_host() const {
  std::unique_lock lock(mutex_);
  wait_for(changed_, lock, stream_, [this] { return ready_; });
  if (error_) std::rethrow_exception(error_);
}

void HostEvent::set(std::exception_ptr error) {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard lock(mutex_);
    ready_ = true;
    error_ = std::move(error);
    callbacks.swap(callbacks_);
  }
  changed_.notify_all();
  for (auto& callback : callbacks) callback();
}

void HostEvent::on_ready(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!ready_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

CpuStream& as_cpu(Stream& stream) {
  auto* cpu = dynamic_cast<CpuStream*>(&stream);
  CHECK(cpu != nullptr, "stream '", stream.name(), "' is not a CPU stream");
  return *cpu;
}

void enqueue_cpu(Stream& stream, Task task) { as_cpu(stream).enqueue(std::move(task)); }

}  // namespace ferry
