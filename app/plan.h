#pragma once

// Every number that the forms of `ferry plan` show.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/activation_forecast.h"
#include "app/megatron_estimate.h"
#include "app/model/cost_model.h"
#include "pipeline/simulate.h"
#include "pipeline/stage_layout.h"

namespace ferry {

/// What a layer of one kind keeps on the device, and what of it copies hide.
struct LayerPlan {
  std::vector<ActivationCost> costs;  // by module; empty if no layer is of this kind
  double forward_flops = 0;           // of one token on one rank
  /// Bytes per token whose copy to the host takes as long as the layer's forward pass. Where
  /// copies run beside forward and backward, in a pipeline under way, it is three times that.
  double hidden_bytes = 0;

  /// Time to copy these bytes over time of forward.
  double copy_ratio(int64_t bytes_per_token) const {
    return static_cast<double>(bytes_per_token) / hidden_bytes;
  }
};

struct Plan {
  MachineRates rates;
  std::vector<std::pair<std::string, int64_t>> grid;
  std::vector<StageLayers> stages;
  int64_t moe_layers = 0;
  int64_t experts_per_rank = 0;
  ParameterCount parameters;
  FlopCount flops;
  int64_t tokens_per_step = 0;
  int64_t num_microbatches = 0;
  LayerPlan dense_layer, moe_layer;
  // Of a rank of each pipeline rank.
  std::vector<ActivationForecast> activations;
  std::vector<MemoryEstimate> memory;
  /// What optimizer.offload.fraction = "auto" with auto_goal = "memory" comes to, if the size of a
  /// device is known.
  std::optional<double> chosen_fraction;
  MegatronEstimate megatron;
  ScheduleShape shape;
  std::vector<std::vector<Action>> schedules;
  Simulation simulation;
};

Plan make_plan(const RunConfig& config, int64_t ranks, const MachineRates& rates);

std::vector<std::pair<std::string, int64_t>> rows(const ParameterCount& count);
std::vector<std::pair<std::string, int64_t>> rows(const MemoryEstimate& bytes);
std::vector<int64_t> layers_per_stage(const Plan& plan);
/// "1,234,567"
std::string with_commas(int64_t value);

/// The plan as text and as JSON: see app/plan_command.h.
std::string plan_text(const Plan& plan, const RunConfig& config, int64_t ranks);
std::string plan_json(const Plan& plan, const RunConfig& config, int64_t ranks);

/// The parts of the text that are about memory: what layers save, where the memory of a rank goes,
/// and its optimizer, what offload moves, and what Megatron-LM's estimator says.
std::string saved_tables(const Plan& plan);
std::string memory_tables(const Plan& plan);
std::string optimizer_table(const Plan& plan, const RunConfig& config);
std::string offload_tables(const Plan& plan, const RunConfig& config);
std::string megatron_table(const Plan& plan, const RunConfig& config);
/// One line: what a step moves.
std::string offload_line(const Plan& plan, const RunConfig& config);

}  // namespace ferry
