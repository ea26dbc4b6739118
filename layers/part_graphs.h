#pragma once

// Parts of a model as graphs (cuda_graph.impl = "local"): what a module enqueues in forward is
// recorded once and replayed for later micro-batches, and so is what it enqueues in backward.
//
// A recording has its own memory, so each micro-batch that is between its forward and its backward
// has one of its own: as many as are under way at once are made, in the first step that uses them.
// Inputs are copied to where the graph reads them; results, and all that forward saves for
// backward, stay where the graph writes them. So they are not on the tape, and no policy moves
// them; what is cheap to make again is still discarded if the policy says so.
//
// What the host computes from a micro-batch is in the recording: its sizes, and the number of its
// labels that count. A micro-batch with others than the first recorded one is run without graphs.

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/module.h"

namespace ferry {

/// What the graphs of a model have in common. Outlives them.
class PartGraphs {
 public:
  /// Parts are graphs in the training passes that begin from now on. All that they make at a first
  /// use (see capture()) exists.
  void use() { in_use_ = true; }
  /// Forgets all recordings; parts run as ever until use(). No pass may be under way.
  void drop() {
    in_use_ = false;
    ++generation_;
    num_graphs_ = num_nodes_ = num_launches_ = 0;
  }
  bool in_use() const { return in_use_; }
  /// Changes when recordings are to be forgotten.
  int64_t generation() const { return generation_; }
  /// `listener` is called after each launch.
  void on_launch(std::function<void(Stream&)> listener) { listener_ = std::move(listener); }

  void recorded(const Graph& graph) {
    ++num_graphs_;
    num_nodes_ += graph.num_nodes();
  }
  void launch(Graph& graph, Stream& stream) {
    graph.launch(stream);
    ++num_launches_;
    if (listener_) listener_(stream);
  }
  int64_t num_graphs() const { return num_graphs_; }
  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_launches() const { return num_launches_; }

 private:
  bool in_use_ = false;
  int64_t generation_ = 0;
  int64_t num_graphs_ = 0, num_nodes_ = 0, num_launches_ = 0;
  std::function<void(Stream&)> listener_;
};

/// The tape policy inside of a graph: nothing moves.
class KeepInGraph final : public TapePolicy {
 public:
  /// `outer`: what discards; may be null.
  explicit KeepInGraph(const TapePolicy* outer) : outer_(outer) {}
  bool discards(Label label) const override { return outer_ != nullptr && outer_->discards(label); }
  void saved(Record& record, Stream&) override;
  /// The tensors that were saved and not discarded, whose bytes `ledger` (may be null) counts from
  /// now on. Their owner keeps them as long as there are graphs; the ledger then goes, too.
  std::vector<Tensor> take(Stream& stream, MemoryLedger* ledger);

 private:
  const TapePolicy* outer_;
  std::set<std::shared_ptr<SavedTensor>> saved_;
};

/// One part: from x to a Result (a Tensor, or a struct of them) in forward, from dy to dx in
/// backward.
template <class Result>
class PartGraph {
 public:
  using Forward = std::function<Result(const Tensor& x)>;
  using Backward = std::function<Tensor(const Tensor& dy)>;

  /// `graphs` must outlive this.
  explicit PartGraph(PartGraphs& graphs) : graphs_(graphs) {}

  /// What run(x) gives, for use until backward of the same pass is enqueued.
  Result forward(Pass& pass, const Tensor& x, const Forward& run) {
    Recorded* part = pass.once(this, [&] { return take(pass, x); });
    if (part == nullptr) return run(x);
    if (!part->forward) record_forward(pass, *part, x, run);
    pass.stream.copy(part->x, x);
    graphs_.launch(*part->forward, pass.stream);
    return part->y;
  }

  /// dx, for use until the next backward is enqueued.
  Tensor backward(Pass& pass, const Tensor& dy, const Backward& run) {
    Recorded* part = pass.once(this, [] { return static_cast<Recorded*>(nullptr); });
    if (part == nullptr) return run(dy);
    if (!part->backward) record_backward(pass, *part, dy, run);
    pass.stream.copy(part->dy, dy);
    graphs_.launch(*part->backward, pass.stream);
    part->is_under_way = false;
    return part->dx;
  }

 private:
  struct Kind {
    Shape shape;
    DType dtype;
    int64_t batch, num_loss_tokens;
    bool operator==(const Kind&) const = default;
  };
  // Graphs are the last members, so they go before the memory that they write.
  struct Recorded {
    bool is_under_way = true;
    Tensor x, dy, dx;
    Result y;
    std::vector<Tensor> saved;
    std::unique_ptr<KeepInGraph> policy;
    std::unique_ptr<Tape> tape;  // until backward is recorded, too
    std::unique_ptr<Graph> forward, backward;
  };

  /// One that no pass uses, or null if this pass is not to use any.
  Recorded* take(const Pass& pass, const Tensor& x) {
    if (generation_ != graphs_.generation()) {
      recorded_.clear();
      generation_ = graphs_.generation();
    }
    if (!graphs_.in_use() || !pass.training || !pass.tape().recording()) return nullptr;
    const Kind kind{x.shape(), x.dtype(), pass.batch.batch, pass.batch.num_loss_tokens};
    if (recorded_.empty()) kind_ = kind;
    if (!(kind == kind_)) return nullptr;
    for (const auto& part : recorded_)
      if (!std::exchange(part->is_under_way, true)) return part.get();
    return recorded_.emplace_back(std::make_unique<Recorded>()).get();
  }

  void record_forward(Pass& pass, Recorded& part, const Tensor& x, const Forward& run) {
    part.policy = std::make_unique<KeepInGraph>(pass.tape().policy());
    part.tape = std::make_unique<Tape>(Tape::Mode::Record, part.policy.get());
    part.forward = record(pass, part, part.x, x, [&] { part.y = run(part.x); });
    part.saved = part.policy->take(pass.stream, pass.tape().ledger());
  }

  void record_backward(Pass& pass, Recorded& part, const Tensor& dy, const Backward& run) {
    part.backward = record(pass, part, part.dy, dy, [&] { part.dx = run(part.dy); });
    CHECK(part.tape->empty(), part.tape->num_records(), " records of a graph were never loaded");
    part.tape.reset();
  }

  // What `body` makes of `input`, which will be copied from tensors like `like`.
  std::unique_ptr<Graph> record(Pass& pass, Recorded& part, Tensor& input, const Tensor& like,
                                const std::function<void()>& body) {
    input = Tensor::empty(pass.stream, "inputs of graphs", like.shape(), like.dtype());
    auto graph = capture(
        pass.stream, [&] { pass.with_tape(*part.tape, body); }, Unreleased::Kept);
    graphs_.recorded(*graph);
    return graph;
  }

  PartGraphs& graphs_;
  int64_t generation_ = 0;
  Kind kind_{};
  std::vector<std::unique_ptr<Recorded>> recorded_;
};

/// A Module, or what is like one with another result, as graphs.
template <class Interface, class Result>
class Graphed final : public Interface {
 public:
  Graphed(std::unique_ptr<Interface> inner, PartGraphs& graphs)
      : inner_(std::move(inner)), part_(graphs) {}

  Result forward(Pass& pass, const Tensor& x) override {
    return part_.forward(pass, x, [&](const Tensor& in) { return inner_->forward(pass, in); });
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    return part_.backward(pass, dy, [&](const Tensor& in) { return inner_->backward(pass, in); });
  }
  void visit(const ParameterVisitor& visitor) override { inner_->visit(visitor); }

 private:
  std::unique_ptr<Interface> inner_;
  PartGraph<Result> part_;
};

using GraphedModule = Graphed<Module, Tensor>;

}  // namespace ferry
