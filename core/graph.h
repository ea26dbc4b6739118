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
  /// Pieces of work. Of a GPU: kernels, copies, allocations and releases.
  virtual int64_t num_nodes() const = 0;
};

/// What becomes of memory that the body allocates and does not release. Kept: it is written again
/// by each launch, at the same place; a tensor over it must outlive the graph's last launch.
enum class Unreleased { Refused, Kept };

/// Records what `body` enqueues on `stream`, instead of doing it. The body is called once, now, so
/// that
/// - it must not wait for the stream or read its results;
/// - other streams take part from where they wait for an event of the body until `stream` waits for
///   one of theirs, after their last work; no stream waits for an event from before;
/// - what it allocates on the device it must release (but see Unreleased), and nothing else;
/// - what is made at a first use (plans, tables, loaded kernels) must exist: run it before;
/// - numbers that the host computes in it stay what they are in this call.
/// The graph has memory of its own for what the body allocates, kept from launch to launch, and
/// host memory that the body used and let go stays the graph's.
///
/// On the CPU the graph is the list of tasks, which a launch runs one after another in the order of
/// the calls. It keeps all their tensors: nothing is reused inside.
std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& body,
                               Unreleased unreleased = Unreleased::Refused);

/// Its two parts.
std::unique_ptr<Graph> capture_cpu(Stream& stream, const std::function<void()>& body);
std::unique_ptr<Graph> capture_cuda(Stream& stream, const std::function<void()>& body,
                                    Unreleased unreleased);

}  // namespace ferry
