#pragma once

// Runs a rank's list of actions: passes on a compute stream, messages on the streams of the links.

#include <deque>

#include "core/tensor.h"
#include "pipeline/links.h"
#include "pipeline/rank_schedule.h"

namespace ferry {

/// The passes of one rank. They enqueue on the executor's compute stream and return; `chunk` counts
/// the rank's parts of the model. Tensors passed in are ready on that stream; the callee may keep
/// them and must not write to them. Returned tensors must be ready on that stream, and must not be
/// written to afterwards.
class StageWork {
 public:
  virtual ~StageWork() = default;
  /// x is undefined in the first stage of the model. The last stage may return an undefined tensor.
  virtual Tensor forward(int chunk, int micro, const Tensor& x) = 0;
  /// dy is undefined in the last stage. The first stage may return an undefined tensor.
  virtual Tensor backward(int chunk, int micro, const Tensor& dy) = 0;
};

/// What is passed from stage to stage: activations of a micro-batch, {rows, hidden}.
struct MessageType {
  Shape shape;
  DType dtype = DType::F32;
};

class Executor {
 public:
  /// All must outlive it; `compute` is on the device of the links.
  Executor(PipelineLinks& links, Stream& compute) : links_(links), compute_(compute) {}

  /// Enqueues everything and returns; the host waits for nothing but room in the queue of a CPU
  /// stream. Work enqueued on the compute stream afterwards starts when the sends are done, too.
  /// All ranks must run their schedules of one shape, because messages are not labelled, and the
  /// same `message`.
  ///
  /// The receive of an action may start when the action before it does, not sooner: no more than
  /// two messages that came and have not been used are in memory, that of the action under way and
  /// the next one. Messages that were sent are let go of when the action that `kept_until` names
  /// has its input. Their memory is of the compute stream, which waits for the send when it gets it
  /// back: sooner that would be to wait for another rank, there the send is done
  /// (pipeline/rank_schedule.h). Rank r of p keeps at most min(p, p - r + 1) of them in 1F1B.
  void run(const RankSchedule& schedule, const MessageType& message, StageWork& work);

 private:
  struct SentMessage {
    Tensor tensor;
    int kept_until;
  };

  /// Whether the action takes a message from, or has one for, a neighbouring stage.
  bool receives(const Action& action) const;
  bool sends(const Action& action) const;
  bool first_in_model(const Action& action) const;
  bool last_in_model(const Action& action) const;
  /// `tensor` may be written to from the event on. Returns when the message is in it.
  Event receive(const Action& action, const Tensor& tensor, const Event& may_start);
  void send(const Action& action, const Tensor& tensor);
  /// Messages to itself, of a rank that is its own neighbour.
  std::deque<Tensor>& own_messages(const Action& action);

  PipelineLinks& links_;
  Stream& compute_;
  std::deque<Tensor> own_activations_, own_gradients_;
};

}  // namespace ferry
