#pragma once

// Tasks of CPU streams on their way into a graph, with the rules that a capture by CUDA has, so
// that a body which breaks one is found without a GPU.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/stream.h"

namespace ferry {

class CpuStream;

using Task = std::function<void()>;

/// How many recorded tasks of each stream a point of the recording is after (a vector clock).
using RecordedTasks = std::map<const Stream*, int64_t>;

/// One capture. Its tasks are in the order of the calls, which is one that all its waits allow.
class Recording {
 public:
  explicit Recording(std::string stream) : stream_(std::move(stream)) {}

  void add(const Stream& stream, Task task) {
    ++num_tasks_[&stream];
    tasks_.push_back(std::move(task));
  }
  const RecordedTasks& num_tasks() const { return num_tasks_; }
  /// The stream takes part from now on.
  void joined_by(CpuStream& stream) { streams_.push_back(&stream); }
  const std::vector<CpuStream*>& streams() const { return streams_; }
  std::vector<Task>& tasks() { return tasks_; }
  /// Of the stream that is captured.
  const std::string& stream() const { return stream_; }
  bool has_ended() const { return has_ended_; }
  void end() { has_ended_ = true; }

 private:
  std::string stream_;
  std::vector<CpuStream*> streams_;
  RecordedTasks num_tasks_;
  std::vector<Task> tasks_;
  bool has_ended_ = false;
};

/// A point of a recording: streams may wait for it, and the host may not.
class RecordedEvent final : public EventState {
 public:
  RecordedEvent(std::shared_ptr<Recording> recording_in, RecordedTasks after_in)
      : recording(std::move(recording_in)), after(std::move(after_in)) {}
  bool ready() const override;
  void wait_host() const override;

  const std::shared_ptr<Recording> recording;
  const RecordedTasks after;
};

}  // namespace ferry
