#pragma once

// A rank's part of a model with what training it takes: gradients and their reduction, optimizer
// state. One step is
//   begin_step; forward_backward; finish_backward; gradient_norm; update

#include <memory>
#include <vector>

#include "app/parallel_model.h"
#include "app/train_state.h"
#include "offload/hybrid_device_optimizer.h"
#include "offload/weight_offload.h"
#include "optim/buckets.h"
#include "optim/grad_reducer.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/param_gather.h"
#include "optim/shards.h"

namespace ferry {

class TrainModel {
 public:
  /// Allocates and initialises everything on the stream's device, which `ranks_of_host` ranks share
  /// the host's CPUs of. All must outlive this.
  /// Collective.
  TrainModel(const RunConfig& config, Stream& stream, const MeshGroups& groups,
             int ranks_of_host = 1);

  void begin_step();
  /// Forward and backward of all micro-batches of step `step` (from 1), enqueued; with
  /// optimizer.overlap_grad_reduce, blocks that are done begin to be reduced. `first_sample`:
  /// position in the run of the step's first sample.
  ParallelModel::Input forward_backward(BatchFeed& feed, int64_t first_sample, int64_t step);
  /// Enqueues what is left of the reduction of gradients, and makes the stream wait for all of it.
  void finish_backward() { reducer_.finish(model_.stream()); }
  /// Whether a step may turn out to be worthless: rows of experts are limited, or stashed in a pool
  /// of fixed size.
  bool has_limits() const;
  /// Ranks of the job on which the last step's passes exceeded a limit. Collective; waits for them.
  struct Exceeded {
    int64_t over_capacity = 0;  // more rows than moe.rank_capacity_factor allows
    int64_t stash_overflow = 0;
    int64_t stash_spilled = 0;  // to pages of the host: only slow
    bool worthless() const { return over_capacity > 0 || stash_overflow > 0; }
  };
  Exceeded exceeded();
  /// False: passes take as many rows as come, and leave them where they are. Always the same on all
  /// ranks.
  void set_limits(bool on);
  /// Of all gradients of all ranks, over num_tokens, those of the global batch. Waits for it.
  double gradient_norm(double num_tokens);
  /// Returns the learning rate used.
  double update(int64_t step, double num_tokens, double gradient_norm);
  /// Makes the stream wait for weights that are still on their way from the host or from other
  /// ranks after update. Forward need not: it waits block by block.
  void finish_update();
  /// What an evaluation has to tell of its blocks.
  BlockHooks& evaluation_hooks();

  ParallelModel& model() { return model_; }
  /// Where saved activations live, and what moving them took in the last step.
  ActivationMemory& activation_memory() { return *memory_; }
  /// From the next step on, as the memory tables of `config` say; the model stays as it is, so
  /// modules that are recomputed from their input stay those. Graphs begin anew, with a warm-up.
  void set_activation_memory(const RunConfig& config);
  const std::vector<Parameter*>& parameters() const { return model_.parameters(); }
  StepTotals& totals() { return totals_; }
  const LrSchedule& schedule() const { return schedule_; }

  StateStore& store() { return *store_; }
  const UpdateRule& rule() const { return *rule_; }
  /// Null without optimizer.offload.
  HybridDeviceOptimizer* hybrid_optimizer() { return hybrid_; }
  /// Where the state of the parameters that this rank updates lives.
  std::vector<OptimizerPlace> optimizer_places() const;
  /// What of the state this rank writes to a checkpoint.
  std::vector<StoredRows> stored_rows() const;
  LoadReport load(const Checkpoint& checkpoint, bool weights_only);

 private:
  // Gathers or fetches weights before forward, reduces gradients after backward.
  class Hooks final : public BlockHooks {
   public:
    explicit Hooks(TrainModel& model) : model_(model) {}
    void before_forward(Pass& pass, int block_idx) override {
      model_.gather_.before_forward(pass, block_idx);
      model_.store_->wait_values(pass.stream, block_idx);
      model_.memory_->before_forward(pass, block_idx);
      if (model_.weights_) model_.weights_->before_forward(pass, block_idx);
    }
    void after_backward(Pass& pass, int block_idx) override {
      model_.reducer_.after_backward(pass, block_idx);
      model_.send_gradients(pass.stream, block_idx);
      if (model_.weights_) model_.weights_->after_backward(pass, block_idx);
    }

   private:
    TrainModel& model_;
  };
  // Micro-batches of the step that begins that may be graphs.
  int64_t num_graphed(int64_t num_micro);
  // Tells the store of the block's gradients that are final.
  void send_gradients(Stream& stream, int block);
  std::unique_ptr<StateStore> make_store(const RunConfig& config, Stream& stream,
                                         int ranks_of_host);
  // New values, made by `write` on the stream, wherever they live between uses.
  template <class Write>
  void replace_values(Write write);

  const RunConfig& config_;
  CudaGraphTable graphs_;
  int64_t num_eager_steps_ = 0;  // without graphs, so far
  ParallelModel model_;
  std::unique_ptr<ActivationMemory> memory_;
  ReduceGroups groups_;
  std::vector<std::vector<Parameter*>> blocks_;
  GradientBuckets buckets_;
  GradReducer reducer_;
  std::vector<std::unique_ptr<Parameter>> shards_;  // the rows that this rank owns
  std::vector<Parameter*> updated_;  // they, or without the distributed optimizer all parameters
  ParamGather gather_;
  std::unique_ptr<UpdateRule> rule_;
  HybridDeviceOptimizer* hybrid_ = nullptr;  // the store, if it is one
  std::unique_ptr<StateStore> store_;
  Optimizer optimizer_;
  std::unique_ptr<WeightOffload> weights_;  // null: all values stay on the device
  Hooks hooks_;
  BlockHooks no_hooks_;
  LrSchedule schedule_;
  StepTotals totals_;
};

}  // namespace ferry
