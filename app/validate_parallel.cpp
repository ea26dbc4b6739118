// Rules between the grid of ranks and the sizes that it cuts.

#include <fmt/format.h>

#include "app/nearest.h"
#include "app/validate.h"

namespace ferry {

namespace {

// `ways` ranks share `size` things: report it unless they get equally many.
void require_even(const char* size_key, int64_t size, const char* ways_key, int64_t ways,
                  const char* things, Violations& violations) {
  if (size % ways == 0) return;
  violations.add({ways_key, size_key}, fmt::format("{} does not divide {}", ways_key, size_key),
                 fmt::format("{} {} mod {} = {}", size, things, ways, size % ways),
                 fmt::format("{} = {}", ways_key, nearest_divisors(size, ways)));
}

void validate_world(const ParallelTable& grid, int64_t ranks, Violations& violations) {
  const int64_t dense = grid.tensor * grid.context * grid.pipeline;
  if (ranks % dense != 0) {
    violations.add(
        {"parallel.tensor", "parallel.context", "parallel.pipeline"},
        "the dense grid does not divide the ranks",
        fmt::format("{} ranks mod (tensor {} * context {} * pipeline {} = {}) = {}", ranks,
                    grid.tensor, grid.context, grid.pipeline, dense, ranks % dense),
        fmt::format("{} ranks", nearest_multiples(dense, ranks)));
  }
  const int64_t expert = grid.expert_tensor * grid.expert * grid.pipeline;
  if (ranks % expert != 0) {
    violations.add(
        {"parallel.expert", "parallel.expert_tensor", "parallel.pipeline"},
        "the expert grid does not divide the ranks",
        fmt::format("{} ranks mod (expert_tensor {} * expert {} * pipeline {} = {}) = {}", ranks,
                    grid.expert_tensor, grid.expert, grid.pipeline, expert, ranks % expert),
        fmt::format("{} ranks", nearest_multiples(expert, ranks)));
  }
}

void validate_pipeline(const RunConfig& config, int64_t ranks, Violations& violations) {
  const ParallelTable& grid = config.parallel;
  const int64_t virtual_stages = config.virtual_stages();
  if (virtual_stages > 1 && grid.pipeline == 1) {
    const char* key = grid.layout.empty() ? "parallel.virtual_stages" : "parallel.layout";
    violations.add(
        {key, "parallel.pipeline"}, "virtual stages without a pipeline",
        "they shorten the bubble of a pipeline, and one stage has none",
        grid.layout.empty()
            ? "parallel.virtual_stages = 1, or parallel.pipeline above 1"
            : fmt::format("parallel.pipeline = {}, or a layout of one stage", virtual_stages));
  }
  const int64_t stages = grid.pipeline * grid.virtual_stages;
  if (grid.layout.empty() && config.model.layers % stages != 0) {
    violations.add({"parallel.pipeline", "parallel.virtual_stages", "model.layers"},
                   "the stages do not divide model.layers",
                   fmt::format("{} layers mod (pipeline {} * virtual_stages {} = {}) = {}",
                               config.model.layers, grid.pipeline, grid.virtual_stages, stages,
                               config.model.layers % stages),
                   fmt::format("{} stages in all, or a parallel.layout",
                               nearest_divisors(config.model.layers, stages)));
  }
  const int64_t group = config.microbatch_group();
  const int64_t samples = config.batch.micro * config.data_parallel(ranks);
  if (virtual_stages == 1 || grid.pipeline == 1 || samples == 0) return;
  const int64_t num_microbatches = config.global_batch(ranks) / samples;
  if (group < grid.pipeline || group > num_microbatches) {
    violations.add({"parallel.microbatch_group", "parallel.pipeline"},
                   "parallel.microbatch_group is out of range",
                   fmt::format("it must lie between the {} stages and the {} micro-batches",
                               grid.pipeline, num_microbatches),
                   fmt::format("parallel.microbatch_group = {}", grid.pipeline));
  } else if (const int64_t rest = num_microbatches % group; rest > 0 && rest < grid.pipeline) {
    violations.add(
        {"parallel.microbatch_group", "parallel.pipeline"},
        "the last group of micro-batches is shorter than the pipeline",
        fmt::format("{} micro-batches mod {} = {}, fewer than {} stages", num_microbatches, group,
                    rest, grid.pipeline),
        fmt::format("parallel.microbatch_group = {}", nearest_divisors(num_microbatches, group)));
  }
}

}  // namespace

void validate_parallel(const RunConfig& config, int64_t ranks, Violations& violations) {
  const ParallelTable& grid = config.parallel;
  const ModelConfig& model = config.model;
  validate_world(grid, ranks, violations);
  validate_pipeline(config, ranks, violations);
  if (grid.expert > 1 && config.moe.experts == 0) {
    violations.add({"parallel.expert", "moe.experts"}, "expert parallelism without experts",
                   "a dense model has nothing to share", "parallel.expert = 1");
  } else if (config.moe.experts > 0) {
    require_even("moe.experts", config.moe.experts, "parallel.expert", grid.expert, "experts",
                 violations);
    require_even("moe.ffn", config.moe.ffn, "parallel.expert_tensor", grid.expert_tensor,
                 "channels", violations);
    require_even("moe.shared_ffn", config.moe.shared_ffn, "parallel.tensor", grid.tensor,
                 "channels", violations);
  }
  require_even("model.heads", model.heads, "parallel.tensor", grid.tensor, "heads", violations);
  require_even("model.kv_heads", model.kv_heads, "parallel.tensor", grid.tensor, "heads",
               violations);
  require_even("model.ffn", model.ffn, "parallel.tensor", grid.tensor, "channels", violations);
  if (grid.sequence && grid.tensor == 1) {
    violations.add({"parallel.sequence", "parallel.tensor"},
                   "sequence parallelism without tensor parallelism",
                   "the tensor-parallel ranks are those that share the sequence",
                   "parallel.sequence = false, or parallel.tensor above 1");
  }
  // A MoE layer deals out the tokens to its tensor-parallel ranks in any case.
  if (grid.sequence || config.moe.experts > 0 || config.recompute.distribute_saved_activations)
    require_even("model.seq", model.seq, "parallel.tensor", grid.tensor, "tokens", violations);
  if (grid.context > 1 && model.seq % (2 * grid.context) != 0) {
    violations.add({"model.seq", "parallel.context"},
                   "model.seq cannot be cut over the context ranks",
                   fmt::format("each rank takes two pieces: {} tokens mod {} = {}", model.seq,
                               2 * grid.context, model.seq % (2 * grid.context)),
                   "model.seq = " + nearest_multiples(2 * grid.context, model.seq));
  }
}

}  // namespace ferry
