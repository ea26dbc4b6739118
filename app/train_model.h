#pragma once

// A rank's part of a model with what training it takes: gradients and their reduction, optimizer
// state. One step is
//   begin_step; forward_backward; finish_backward; gradient_norm; update

#include <memory>
#include <vector>

#include "app/parallel_model.h"
#include "app/train_state.h"
#include "optim/buckets.h"
#include "optim/grad_reducer.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/param_gather.h"
#include "optim/shards.h"

namespace ferry {

class TrainModel {
 public:
  /// Allocates and initialises everything on the stream's device. All must outlive this.
  /// Collective.
  TrainModel(const RunConfig& config, Stream& stream, const MeshGroups& groups);

  void begin_step();
  /// Forward and backward of all micro-batches of step `step` (from 1), enqueued; with
  /// optimizer.overlap_grad_reduce, blocks that are done begin to be reduced. `first_sample`:
  /// position in the run of the step's first sample.
  ParallelModel::Input forward_backward(BatchFeed& feed, int64_t first_sample, int64_t step);
  /// Enqueues what is left of the reduction of gradients, and makes the stream wait for all of it.
  void finish_backward() { reducer_.finish(model_.stream()); }
  /// Of all gradients of all ranks, over num_tokens, those of the global batch. Waits for it.
  double gradient_norm(double num_tokens);
  /// Returns the learning rate used.
  double update(int64_t step, double num_tokens, double gradient_norm);
  /// Makes the stream wait for weights that are still on their way from other ranks after update.
  /// Forward need not: it waits block by block.
  void finish_update() { gather_.wait_all(model_.stream()); }

  ParallelModel& model() { return model_; }
  const std::vector<Parameter*>& parameters() const { return model_.parameters(); }
  StepTotals& totals() { return totals_; }
  const LrSchedule& schedule() const { return schedule_; }

  StateStore& store() { return store_; }
  /// What of the state this rank writes to a checkpoint.
  std::vector<StoredRows> stored_rows() const;
  LoadReport load(const Checkpoint& checkpoint, bool weights_only);

 private:
  // Gathers weights before forward, reduces gradients after backward.
  class Hooks final : public BlockHooks {
   public:
    Hooks(ParamGather& gather, GradReducer& reducer) : gather_(gather), reducer_(reducer) {}
    void before_forward(Pass& pass, int block_idx) override {
      gather_.before_forward(pass, block_idx);
    }
    void after_backward(Pass& pass, int block_idx) override {
      reducer_.after_backward(pass, block_idx);
    }

   private:
    ParamGather& gather_;
    GradReducer& reducer_;
  };

  const RunConfig& config_;
  ParallelModel model_;
  ReduceGroups groups_;
  std::vector<std::vector<Parameter*>> blocks_;
  GradientBuckets buckets_;
  GradReducer reducer_;
  std::vector<std::unique_ptr<Parameter>> shards_;  // the rows that this rank owns
  std::vector<Parameter*> updated_;  // they, or without the distributed optimizer all parameters
  ParamGather gather_;
  DeviceStateStore store_;
  Optimizer optimizer_;
  Hooks hooks_;
  LrSchedule schedule_;
  StepTotals totals_;
};

}  // namespace ferry
