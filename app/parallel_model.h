#pragma once

// The part of the model that a rank holds, initialised, and what it takes to run it together with
// the other ranks.

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "app/graphed_micro_batch.h"
#include "app/micro_batch_work.h"
#include "app/model_layout.h"
#include "pipeline/executor.h"

namespace ferry {

class ParallelModel {
 public:
  /// Allocates on the stream's device. All must outlive this. Collective.
  ParallelModel(const RunConfig& config, Stream& stream, const MeshGroups& groups);

  /// What one run consumed.
  struct Input {
    /// Labels that counted in this rank's micro-batches. The ranks of a pipeline and of a
    /// tensor-parallel group read the same ones; the first of them reports them, the others 0.
    double num_loss_tokens = 0;
    double data_seconds = 0;  // that the host waited for data
  };
  /// Enqueues forward and backward of `num_micro` micro-batches as the configuration's schedule has
  /// them, or, in evaluation (context.training false), forward alone. `before_backward(chunk,
  /// micro)` is told of each backward pass that is about to be enqueued.
  Input run(int64_t num_micro, BatchFeed& feed, BlockHooks& hooks, const StepContext& context,
            std::function<void(int, int)> before_backward = {});

  /// What micro-batches are graphs of (StepContext::num_graphed); null before the first of them.
  const GraphedMicroBatch* graph() const { return graph_.get(); }
  /// Of parts of it, with cuda_graph.impl = "local".
  PartGraphs& part_graphs() { return part_graphs_; }
  /// All graphs are recorded anew: the next micro-batch that may be one, and parts when they are
  /// used again.
  void drop_graphs() {
    graph_.reset();
    part_graphs_.drop();
  }

  /// moe.rank_capacity_factor: whether rows of experts are limited from the next pass on. Always
  /// the same on all ranks.
  void set_capacity_enabled(bool enabled) { capacity_.enabled = enabled; }

  /// Of the last chunk of the pipeline's last stage; null on other stages.
  LossHead* head() { return chunks_.back()->head(); }

  /// All parameters of this rank; by block, as hooks number them.
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  std::vector<std::vector<Parameter*>> parameters_by_block() const;
  /// The step totals with the tokens of experts, of all chunks.
  std::vector<Gpt::ExpertCounts> expert_counts() const;

  const RunConfig& config() const { return config_; }
  Stream& stream() const { return stream_; }
  const MeshGroups& groups() const { return groups_; }

 private:
  /// Of this rank. Valid until the next call.
  const RankSchedule& schedule(const ScheduleShape& shape);

  const RunConfig& config_;
  Stream& stream_;
  const MeshGroups& groups_;
  std::unique_ptr<Stream> exchange_stream_;  // ExpertParallel::side
  RankCapacity capacity_;
  ModelAxes axes_;
  PartGraphs part_graphs_;
  std::vector<std::unique_ptr<Gpt>> chunks_;
  std::unique_ptr<GraphedMicroBatch> graph_;
  std::vector<Parameter*> parameters_;
  PipelineLinks links_;
  Executor executor_;
  std::deque<std::pair<ScheduleShape, RankSchedule>> schedules_;  // the last few, newest first
};

}  // namespace ferry
