#pragma once

// The numbers of one optimizer step, as the console and metrics.jsonl report them.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ferry {

struct StepReport {
  int64_t step = 0;
  int64_t samples = 0;       // consumed by the run so far, over all ranks
  int64_t total_tokens = 0;  // consumed by the run so far, over all ranks
  double loss = 0;           // mean over the tokens of the global batch, nats
  double grad_norm = 0;      // before clipping, over all parameters
  double lr = 0;
  double seconds = 0;              // of the whole step
  double data_seconds = 0;         // of it, waiting for the loader
  double optimizer_seconds = 0;    // of it, gradient norm and update
  double tokens = 0;               // of this step, over all ranks
  std::optional<double> aux_loss;  // mean over MoE layers and micro-batches, without coefficient
  std::optional<double> z_loss;
  std::optional<double> valid_loss;  // if the step was followed by an evaluation
  /// Training stood still for saves, before or in the step; none if there was none to wait for.
  std::optional<double> checkpoint_seconds;
  double balance = 0;        // largest over MoE layers of busiest expert / mean
  int64_t dead_experts = 0;  // experts without a token in this step, over all MoE layers
  std::vector<std::vector<int64_t>> expert_tokens;  // [MoE layer][expert], over all ranks
  double flops = 0;                                 // model FLOPs of this step, over all ranks
  double mfu = 0;            // of the devices' peak; 0 where the peak is not known
  int64_t peak_bytes = 0;    // of the device's memory
  int64_t pinned_bytes = 0;  // of host memory pinned for a GPU
  /// By module: bytes over all ranks, and the mean over ranks of the time that compute stood still.
  std::map<std::string, double> d2h_bytes, h2d_bytes, offload_exposed_s;
  /// Of the last update on the host that is done, mean over ranks: d2h, cpu_update, h2d, wall.
  std::map<std::string, double> optimizer_update_s;
  std::map<std::string, int64_t> activation_bytes;  // by module, peaks on the first rank's device
};

/// Fills expert_tokens, balance and dead_experts from the counts [MoE layers * experts].
void set_expert_tokens(StepReport& report, std::span<const double> counts, int64_t experts);

}  // namespace ferry
