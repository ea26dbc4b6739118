#pragma once

// Moving tokens to the ranks and experts that compute them, and results back.
//
//   prepare(routing)   dispatch(x, probs) -> rows ordered by expert   combine(rows) -> tokens
//
// T tokens of this rank, k choices each; R rows of this rank's experts. The backward of dispatch is
// combine and the backward of combine is dispatch, with the plan of the same micro-batch: prepare
// leaves it in the Pass, where a second forward (recomputation) finds it, too. Rows of an expert
// are ordered by rank of the exchange group and then by token, so its sums do not depend on how
// experts are dealt out.
//
// The backward of dispatch has two halves: what is enqueued between them on the stream of the pass,
// gradients of weights for example, runs beside the exchange. First the numbers travel and then the
// rows, so the small kernels of the router's backward come next: a grouped product takes every
// multiprocessor of a GPU until its end, and an exchange that has not begun by then waits for it.
//
// On several ranks, all ranks of the exchange group make the same calls in the same order, also a
// rank without rows. The host waits once, in the first dispatch of a micro-batch, for numbers of
// rows; work enqueued between prepare and dispatch hides that.
//
// With a RankCapacity, R is a fixed number in training, whatever the routing: the rows in use come
// first, as many as the last offset says, and the others hold anything. Of more rows than R the
// last ones are left out: they add nothing to their tokens and get no gradients.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/ops/grouped_gemm.h"
#include "core/pass.h"
#include "moe/expert_parallel.h"
#include "moe/router.h"

namespace ferry {

/// What the experts of this rank work on.
struct Dispatched {
  Rows rows;       // [R, hidden]
  Tensor probs;    // [R]
  Tensor offsets;  // [local experts + 1] I32; the last one is the number of rows in use
};

class Dispatcher {
 public:
  /// Among one rank: the default.
  explicit Dispatcher(const ExpertParallel& experts = {}) : experts_(experts) {}
  virtual ~Dispatcher() = default;
  /// Makes the plan of this micro-batch; on a second forward it stays as it is.
  virtual void prepare(Pass& pass, const Routing& routing) = 0;
  /// x [T, hidden], which is on the tape, and the probabilities [T, k]. Rows that are copies can be
  /// made again from x; on several ranks that takes another exchange.
  Dispatched dispatch(Pass& pass, const Tensor& x, const Tensor& probs);
  /// y [T, hidden] = residual (may be undefined) + the sum over the rows of each token.
  Tensor combine(Pass& pass, const Tensor& rows, const Tensor& residual);
  /// Gradients of combine: drows [R, hidden] from dy [T, hidden].
  Tensor combine_backward(Pass& pass, const Tensor& dy);
  /// What other ranks send, and what is sent to them. That lives until the stream of the pass has
  /// waited for the exchange: a stream that gets memory back waits for all that uses it.
  struct Exchanged {
    Tensor received;
    Tensor sent;
    Event arrived;
  };
  /// Gradients of dispatch, on their way to the ranks of the tokens: from drows [R, hidden] and
  /// dprobs [R]. Lives until both gradients below are made.
  struct Returning {
    Exchanged numbers;  // what the sums of choices are made of
    Exchanged rows;     // and of tokens
  };
  Returning start_dispatch_backward(Pass& pass, const Tensor& drows, const Tensor& dprobs);
  /// Of the probabilities, [T, k].
  Tensor probs_gradient(Pass& pass, const Returning& returning) const;
  /// Of x, [T, hidden] = dresidual (may be undefined) + ...
  Tensor x_gradient(Pass& pass, const Returning& returning, const Tensor& dresidual) const;

 protected:
  // What kinds of dispatchers differ in: one way for rows of hidden numbers and one for single
  // numbers, from tokens to experts and from experts to tokens, and each serves forward and
  // backward. The first three are called in this order. The way back begins with an exchange, on
  // `exchange`, which is the stream of the pass or one that runs beside it.

  /// The rows without a copy, if this kind of dispatcher has them, else nothing.
  virtual std::optional<Rows> rows_in_place(Pass&, const Tensor&) const { return std::nullopt; }
  /// rows [R, hidden] of the tokens x [T, hidden], in memory of this name.
  virtual Tensor rows_of_tokens(Pass& pass, const Tensor& x, std::string_view name) const = 0;
  /// [R] from [T, k].
  virtual Tensor numbers_of_rows(Pass& pass, const Tensor& by_choice) const = 0;
  virtual Tensor offsets(Pass& pass) const = 0;
  /// What the tokens of this rank get of all ranks' rows [R, hidden].
  virtual Exchanged return_rows(Pass& pass, Stream& exchange, const Tensor& rows) const = 0;
  /// y [T, hidden] = residual (may be undefined) + the sums of each token, of what return_rows
  /// received.
  virtual Tensor tokens_of_returned(Pass& pass, const Tensor& returned,
                                    const Tensor& residual) const = 0;
  /// What the choices of this rank get of all ranks' numbers [R].
  virtual Exchanged return_numbers(Pass& pass, Stream& exchange, const Tensor& by_row) const = 0;
  /// [T, k] of what return_numbers received.
  virtual Tensor choices_of_returned(Pass& pass, const Tensor& returned) const = 0;

  /// The stream for exchanges beside that of the pass.
  Stream& beside(Pass& pass) const {
    return experts_.side != nullptr ? *experts_.side : pass.stream;
  }
  /// What is enqueued on `exchange` from now on follows what is on `stream`.
  static void follow(Stream& exchange, Stream& stream) {
    if (&exchange != &stream) exchange.wait(stream.record());
  }
  /// When what is enqueued on `exchange` so far is done, for the stream of the pass.
  static Event arrival(Stream& exchange, Pass& pass) {
    return &exchange != &pass.stream ? exchange.record() : Event();
  }
  /// The fixed number of rows in this pass, if there is one.
  std::optional<int64_t> row_limit(const Pass& pass, const Routing& routing) const {
    return pass.training ? experts_.row_limit(routing.experts.numel()) : std::nullopt;
  }

  /// Makes the plan of this micro-batch, unless it is there already.
  template <class Make>
  void keep_plan(Pass& pass, Make make) const {
    pass.once(this, make);
  }
  /// The plan that keep_plan left.
  template <class Plan>
  Plan plan_of(Pass& pass) const {
    return pass.once(this, []() -> Plan { fail(ExitCode::Internal, "no tokens were prepared"); });
  }

  const ExpertParallel experts_;
};

/// `kind` is moe.dispatcher, which matters on several ranks only; `num_experts` is that of the
/// layer. `gather`: on one rank, experts read the rows of the tokens where they are.
std::unique_ptr<Dispatcher> make_dispatcher(const std::string& kind, int64_t num_experts,
                                            const ExpertParallel& experts, bool gather = false);

}  // namespace ferry
