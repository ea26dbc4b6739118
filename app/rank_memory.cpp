#include "app/rank_memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "app/graph_plan.h"
#include "app/model_layout.h"
#include "app/optimizer_memory.h"
#include "app/optimizer_rule.h"
#include "offload/optimizer_fraction.h"

namespace ferry {
namespace {

// Ranks with copies of a parameter.
int64_t num_copies(const Mesh& mesh, ReduceAxis axis) {
  const MeshSizes& sizes = mesh.sizes();
  const int64_t dp = int64_t{mesh.dp()} * sizes.context;
  switch (axis) {
    case ReduceAxis::Dense:
      return dp;
    case ReduceAxis::Stage:
      return dp * sizes.tensor;
    case ReduceAxis::Tied:
      return sizes.pipeline > 1 ? 2 * dp : dp;
    case ReduceAxis::Expert:
      return mesh.edp();
  }
  fail(ExitCode::Internal, "no such axis");
}

// Bytes of the state that a rank stores, as what is stored of each parameter, on the host: for
// copies from the device, and for copies of what changes on the host (see app/guarded_snapshot.h).
void add_save_memory(MemoryEstimate& memory, const RunConfig& config, int64_t stored,
                     int64_t updated) {
  if (!config.checkpoint.beside_training()) return;
  const OptimizerOffloadTable& offload = config.optimizer.offload;
  const double on_host = updated == 0 ? 0
                                      : static_cast<double>(memory.optimizer_bytes.host_state()) /
                                            static_cast<double>(updated);
  const int64_t copies = std::llround(static_cast<double>(stored) * on_host);
  memory.save_staging = stored - copies;
  const int64_t limit = config.checkpoint.copy_bytes();
  // Where the fraction is chosen in the run, state that has copies now may need staging then.
  const bool bounded = limit > 0 && !(offload.enabled && !offload.fraction);
  memory.save_copies = bounded ? std::min(copies, limit) : copies;
}

// The layer of a parameter, -1 for the ends of the model.
int64_t layer_of(const Parameter& parameter) {
  const std::string prefix = "layers/";
  if (parameter.name.compare(0, prefix.size(), prefix) != 0) return -1;
  return std::stoll(parameter.name.substr(prefix.size()));
}

// Of layers whose weights wait on the host, a pass has two on the device: the one that it is in and
// the next one.
int64_t bytes_of_neighbours(const std::vector<int64_t>& layers) {
  int64_t most = layers.empty() ? 0 : layers[0];
  for (size_t i = 1; i < layers.size(); ++i) most = std::max(most, layers[i - 1] + layers[i]);
  return most;
}

}  // namespace

MemoryEstimate stage_memory(const RunConfig& config, int64_t ranks, int pp,
                            const ActivationForecast& activations) {
  const GptConfig gpt = config.gpt();
  const ParallelTable& parallel = config.parallel;
  const Mesh mesh(static_cast<int>(ranks), mesh_sizes(parallel));
  const MeshCoordinates at = mesh.at(static_cast<int>(ranks / parallel.pipeline) * pp);
  const ModuleShares shares = module_shares(parallel);
  const int64_t tokens = config.batch.micro * gpt.model.seq;

  MemoryEstimate memory;
  std::vector<UpdatedPart> updated;
  int64_t stored_bytes = 0, updated_bytes = 0;  // of masters and moments in full precision
  const int64_t num_states = 1 + std::ssize(make_update_rule(config.optimizer)->moment_names());
  std::vector<int64_t> moving;  // weights, by layer
  if (config.layer_offload.weights) moving.resize(static_cast<size_t>(config.layer_offload.layers));
  const ModelAxes axes = model_axes(parallel, at);
  for (const ModelPart& part : model_parts(config, pp)) {
    Gpt(gpt, "none", 0, axes, part).visit([&](Parameter& parameter) {
      const auto e = static_cast<int64_t>(size_of(parameter.dtype));
      const auto f = static_cast<int64_t>(size_of(accumulate_dtype(parameter.dtype)));
      const int64_t numel = parameter.shape.numel();
      const int64_t layer = layer_of(parameter);
      // A weight that is the optimizer's master stays.
      if (layer >= 0 && layer < std::ssize(moving) && e < f)
        moving[static_cast<size_t>(layer)] += e * numel;
      else
        memory.weights += e * numel;
      memory.gradients += f * numel;
      const int64_t copies = num_copies(mesh, parameter.axis);
      const auto share = [&](int64_t ranks) {
        return (matrix_rows(parameter.shape) + ranks - 1) / ranks * matrix_columns(parameter.shape);
      };
      updated.push_back({share(config.optimizer.distributed ? copies : 1), parameter.dtype,
                         parameter.axis == ReduceAxis::Expert});
      updated_bytes += num_states * f * updated.back().elements;
      stored_bytes += num_states * f * (parameter.is_copy ? 0 : share(copies));
    });
    if (part.head) memory.logits = logit_bytes(gpt, tokens, shares);
  }
  memory.optimizer_bytes = optimizer_bytes(config.optimizer, updated);
  memory.optimizer = memory.optimizer_bytes.device();
  memory.activations = activations.bytes();
  memory.copies = activations.copies;
  memory.stash = activations.stash;
  memory.workspace = workspace_bytes(gpt, tokens, shares) + graph_tensor_bytes(config, ranks, pp);
  // The update has all of them on the device, but no activations: what is more than a pass needs.
  const int64_t all = std::accumulate(moving.begin(), moving.end(), int64_t{0});
  memory.weights +=
      std::max(bytes_of_neighbours(moving),
               all - (memory.activations + memory.copies + memory.logits + memory.workspace));
  const OptimizerOffloadTable& offload = config.optimizer.offload;
  const int64_t gradients = memory.optimizer_bytes.gradient_staging;
  const int64_t values = memory.optimizer_bytes.value_staging;
  memory.host = activations.host + all + (offload.pin_grads ? gradients : 0) +
                (offload.pin_params ? values : 0);
  memory.pageable = memory.optimizer_bytes.host_state() + (offload.pin_grads ? 0 : gradients) +
                    (offload.pin_params ? 0 : values);
  add_save_memory(memory, config, stored_bytes, updated_bytes);
  return memory;
}

MemoryEstimate stage_memory(const RunConfig& config, int64_t ranks, int pp) {
  return stage_memory(config, ranks, pp, forecast_activations(config, ranks, pp));
}

double fraction_that_fits(const RunConfig& config, int64_t ranks,
                          const std::vector<ActivationForecast>& activations,
                          int64_t device_bytes) {
  const auto fits = [&](int hundredths) {
    const RunConfig fixed = with_fraction(config, hundredths / 100.0);
    for (int pp = 0; pp < config.parallel.pipeline; ++pp) {
      const MemoryEstimate memory =
          stage_memory(fixed, ranks, pp, activations.at(static_cast<size_t>(pp)));
      if (memory.total() + device_reserve(device_bytes) > device_bytes) return false;
    }
    return true;
  };
  int low = 0, high = 100;  // the more the host has, the less is on the device
  while (low < high) {
    const int middle = (low + high) / 2;
    if (fits(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low / 100.0;
}

RunConfig with_fraction(RunConfig config, double fraction) {
  OptimizerOffloadTable& offload = config.optimizer.offload;
  offload.take = offload.takes_last() ? "last" : "first";
  offload.fraction = fraction;
  return config;
}

std::vector<MemoryEstimate> stage_memories(const RunConfig& config, int64_t ranks) {
  std::vector<MemoryEstimate> stages;
  for (int pp = 0; pp < config.parallel.pipeline; ++pp)
    stages.push_back(stage_memory(config, ranks, pp));
  return stages;
}

}  // namespace ferry
