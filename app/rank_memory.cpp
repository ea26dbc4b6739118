#include "app/rank_memory.h"

#include <algorithm>

#include "app/model_layout.h"

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

// The most bytes that are saved at once when every pass through chunk c saves bytes_of_chunk[c].
int64_t peak_bytes(const std::vector<Action>& actions, const std::vector<int64_t>& bytes_of_chunk) {
  int64_t bytes = 0, peak = 0;
  for (const Action& action : actions) {
    const int64_t own = bytes_of_chunk.at(static_cast<size_t>(action.chunk));
    bytes += action.kind == Action::Kind::Forward ? own : -own;
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace

MemoryEstimate stage_memory(const RunConfig& config, int64_t ranks, int pp) {
  const GptConfig gpt = config.gpt();
  const ParallelTable& parallel = config.parallel;
  const Mesh mesh(static_cast<int>(ranks), mesh_sizes(parallel));
  const MeshCoordinates at = mesh.at(static_cast<int>(ranks / parallel.pipeline) * pp);
  const ModuleShares shares{parallel.tensor, parallel.sequence, parallel.expert_tensor};
  const int64_t tokens = config.batch.micro * gpt.model.seq;

  MemoryEstimate memory;
  std::vector<int64_t> saved;
  const ModelAxes axes = model_axes(parallel, at);
  for (const ModelPart& part : model_parts(config, pp)) {
    Gpt(gpt, "none", 0, axes, part).visit([&](Parameter& parameter) {
      const auto e = static_cast<int64_t>(size_of(parameter.dtype));
      const auto f = static_cast<int64_t>(size_of(accumulate_dtype(parameter.dtype)));
      const int64_t numel = parameter.shape.numel();
      memory.weights += e * numel;
      memory.gradients += f * numel;
      const int64_t copies = config.optimizer.distributed ? num_copies(mesh, parameter.axis) : 1;
      const int64_t rows = matrix_rows(parameter.shape);
      const int64_t updated = (rows + copies - 1) / copies * matrix_columns(parameter.shape);
      memory.optimizer += (e == f ? 2 : 3) * f * updated;
    });
    saved.push_back(saved_bytes(gpt, part.first_layer, part.num_layers, part.head, tokens, shares));
    if (part.head) memory.logits = logit_bytes(gpt, tokens, shares);
  }
  memory.activations = peak_bytes(make_schedule(training_schedule(config, ranks), pp), saved);
  memory.workspace = workspace_bytes(gpt, tokens, shares);
  return memory;
}

std::vector<MemoryEstimate> stage_memories(const RunConfig& config, int64_t ranks) {
  std::vector<MemoryEstimate> stages;
  for (int pp = 0; pp < config.parallel.pipeline; ++pp)
    stages.push_back(stage_memory(config, ranks, pp));
  return stages;
}

}  // namespace ferry
