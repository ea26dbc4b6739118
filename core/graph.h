#pragma once

// Work of a stream that is recorded once and enqueued again and again: on a GPU a CUDA graph, one
// launch instead of one for every kernel.

#include <cstdint>
#include <functional>
#include <memory>

#include "core/stream.h"

namespace ferry {

class Graph {
 public:
  virtual ~Graph() = default;
  /// Enqueues the recorded work on the stream that it was recorded from. It reads and writes the
  /// memory that it was recorded with. Error(ExitCode::Resource) if there is no memory for what the
  /// work allocates; the driver keeps what it had found by then, so the process is to end.
  virtual void launch(Stream& stream) = 0;
  /// Pieces of work: kernels, copies, allocations and releases. 0 on the CPU.
  virtual int64_t num_nodes() const = 0;
};

/// Records what `body` enqueues on `stream`, instead of doing it. The body and all it uses must
/// stay callable as long as the graph: on the CPU a launch calls it. For a GPU it is called once,
/// now, so that
/// - it must not wait for the stream or read its results, nor use other streams or their events;
/// - what it allocates it must release, and it must release nothing else;
/// - what is made at a first use (plans, tables, loaded kernels) must exist: run it before;
/// - numbers that the host computes in it stay what they are in this call.
/// The graph has memory of its own for what the body allocates, kept from launch to launch.
std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& body);

/// Its part for GPUs.
std::unique_ptr<Graph> capture_cuda(Stream& stream, const std::function<void()>& body);

}  // namespace ferry
