#pragma once

// Moves tensors between a device and its (pinned) host memory, beside the compute stream: one
// stream for each direction, so that both run at once. Each buffer has its own events: host memory
// is reused when its last copy is done (the pool of the device sees to that), device memory when
// the copy away from it is done.
//
// On the CPU the "host" memory is other memory of the CPU, and the copies are tasks of two CPU
// streams: a wait that is missing is a data race that ThreadSanitizer names.
//
// Inside a graph (core/graph.h), which is recorded after settle(), the copies are part of it: all
// that leaves is brought back, memory is let go where the compute stream has waited for its copy,
// and nothing is timed.

#include <deque>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "offload/activation_mover.h"

namespace ferry {

/// A tensor that is in host memory, or on its way. Made by CopyEngine::to_host.
class HostedTensor {
 public:
  int64_t bytes() const { return host_.bytes(); }
  /// In host memory or on its way there; then it is reloading(), and then neither.
  bool away() const { return host_.defined(); }
  bool reloading() const { return device_.defined(); }

 private:
  friend class CopyEngine;
  Tensor host_;
  Event in_host_;    // the copy away is done
  Tensor device_;    // after reload()
  Event on_device_;  // the copy back is done
  size_t module_ = 0;
  int64_t sequence_ = 0;  // of the copy away
};

class CopyEngine {
 public:
  /// Makes its two streams on `device`. When the device runs short of memory, the host waits for
  /// the copies under way, so that theirs can be reused.
  /// `ledger` (may be null, must outlive this) counts under the modules' names what is on the
  /// device but not on the tape: what has not arrived on the host, and what comes back.
  /// `takes_back`: what is needed before it has left is used as it is, and not copied back.
  explicit CopyEngine(Device& device, MemoryLedger* ledger = nullptr, bool takes_back = false);
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  /// Starts the copy of `tensor`, which is ready at `ready` and is not written afterwards, and
  /// keeps it alive until then. Bytes are counted under `module`.
  std::shared_ptr<HostedTensor> to_host(const Tensor& tensor, const Event& ready,
                                        const std::string& module);
  /// Makes `compute` wait until `hosted` is in host memory, and then lets go of the device memory
  /// of all that left before it and of it. The time that `compute` stands still is counted.
  void join(Stream& compute, const HostedTensor& hosted);
  /// Lets go of device memory whose copy is done; never waits. In a graph: of none.
  void release_finished();
  /// The host waits until nothing is on its way: then a graph of copies may be recorded.
  void settle();
  bool has_copies_under_way() const { return !under_way_.empty(); }

  /// Starts to bring it back into new memory, whose first use is on `compute`. Once only.
  void reload(HostedTensor& hosted, Stream& compute);
  /// The tensor for use on `compute`, which waits for its copy; reload()s it if that was not done.
  /// Once only. The time that `compute` stands still is counted.
  Tensor bring_back(HostedTensor& hosted, Stream& compute);
  /// The same with memory of the caller, after all of `after`; they return the end of the copy. The
  /// caller keeps the device memory until a stream that orders its reuse has waited for that. Bytes
  /// are counted under `module`.
  Event copy_to_host(const Tensor& host, const Tensor& device, std::initializer_list<Event> after,
                     const std::string& module);
  Event copy_to_device(const Tensor& device, const Tensor& host, std::initializer_list<Event> after,
                       const std::string& module);
  /// `compute` waits for an event of these copies on behalf of `module`; the time is counted.
  void wait(Stream& compute, const Event& event, const std::string& module);

  /// Bytes moved and time lost since the last call of start_counting(). Waits for the copies.
  TrafficByModule traffic() const;
  void start_counting();
  /// A graph that these copies are part of was launched: bytes are counted now, not when it was
  /// recorded.
  void count_launch();

 private:
  struct UnderWay {
    Tensor device;
    Event copied;
    int64_t sequence;
    size_t module;
    bool taken_back = false;  // and counted by whoever has it
  };
  struct Wait {
    size_t module;
    std::shared_ptr<const TimeStamp> begin, end;
  };
  /// Of one direction, by module.
  struct Moved {
    std::vector<int64_t> bytes;     // of this step
    std::vector<int64_t> recorded;  // of a launch of the graph
    void add(const Stream& stream, size_t module, int64_t num_bytes) {
      (stream.is_captured() ? recorded : bytes)[module] += num_bytes;
    }
  };
  size_t module_index(const std::string& module);
  void release_oldest();
  /// All that left before it, and it.
  void release_until(int64_t sequence);
  /// The memory of a tensor that has not left; undefined if it has.
  Tensor take_back(const HostedTensor& hosted);
  void count(size_t module, int64_t bytes) const;  // on the device; negative: no longer

  Device& device_;
  MemoryLedger* ledger_;
  bool takes_back_;
  std::unique_ptr<Stream> to_host_, to_device_;
  std::deque<UnderWay> under_way_;  // in the order in which they left
  int64_t num_left_ = 0;
  std::vector<std::string> modules_;
  Moved d2h_, h2d_;
  std::vector<Wait> waits_;
};

}  // namespace ferry
