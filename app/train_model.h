#pragma once

// A model with what training it takes: gradients, their reduction, optimizer state. One step is
//   begin_step; micro_batch x n; finish_backward; gradient_norm; update

#include <memory>
#include <vector>

#include "app/model/gpt.h"
#include "app/run_config.h"
#include "core/comm/mesh.h"
#include "optim/buckets.h"
#include "optim/grad_reducer.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace ferry {

class TrainModel {
 public:
  /// Allocates and initialises everything on the stream's device. `groups` must outlive this.
  TrainModel(const RunConfig& config, Stream& stream, const MeshGroups& groups);

  void begin_step();
  /// Forward and backward of one micro-batch of step `step` (from 1); `last` starts the reduction.
  void micro_batch(const Batch& batch, int64_t step, bool last);
  void finish_backward() { reducer_->finish(stream_); }
  /// See Optimizer. num_tokens: of the global batch.
  double gradient_norm(double num_tokens) { return optimizer_->gradient_norm(stream_, num_tokens); }
  /// Returns the learning rate used.
  double update(int64_t step, double num_tokens, double gradient_norm);

  Gpt& gpt() { return gpt_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  StateStore& store() { return *store_; }
  StepTotals& totals() { return totals_; }
  const LrSchedule& schedule() const { return schedule_; }

 private:
  const RunConfig& config_;
  Stream& stream_;
  Gpt gpt_;
  std::vector<Parameter*> parameters_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<GradReducer> reducer_;
  std::unique_ptr<DeviceStateStore> store_;
  std::unique_ptr<Optimizer> optimizer_;
  LrSchedule schedule_;
  StepTotals totals_;
};

}  // namespace ferry
