#pragma once

// [optimizer.offload] in a run: what it says of itself, the times of its updates, and the choice of
// fraction = "auto".

#include <string>
#include <vector>

#include "app/run_config.h"
#include "app/step_report.h"
#include "app/train_model.h"
#include "core/comm/runtime.h"

namespace ferry {

/// A line for the log if each of `num_ranks` ranks of a host of `num_cpus` CPUs has fewer than half
/// of the threads that its share of them would allow, as with launchers that bind ranks to single
/// cores; empty otherwise. More than 16 threads are not missed: memory does not feed them.
std::string few_threads_notice(int num_threads, int num_ranks, int num_cpus);

class OptimizerOffload {
 public:
  /// All must outlive this. `world`: of collectives on the model's device.
  OptimizerOffload(const RunConfig& config, TrainModel& model, Runtime& runtime, Group& world);

  /// Before the first step: where state lives, with which threads it is updated; writes
  /// optimizer.offload.dump_param_groups. Lines for the log. Collective.
  std::vector<std::string> begin();
  /// After each step: adds the times and bytes of the last update that is done to `report`; after a
  /// few, chooses the fraction if it is "auto", and later says what came of it. Collective.
  std::vector<std::string> after_step(StepReport& report);

 private:
  void add_times(StepReport& report, const UpdateTimes& times);
  std::string choose(const StepReport& report, const UpdateTimes& times);
  void dump_places();

  const RunConfig& config_;
  TrainModel& model_;
  Runtime& runtime_;
  Group& world_;
  int64_t steps_ = 0;          // of this process
  double seconds_before_ = 0;  // of a step at fraction_before_
  double fraction_before_ = 0;
};

}  // namespace ferry
