#pragma once

// The complete configuration of a run, and where each of its values came from.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "app/memory_tables.h"
#include "app/model/model_config.h"
#include "app/run_tables.h"
#include "core/fields.h"

namespace ferry {

/// Where a value was set.
struct Origin {
  enum class Kind { Default, Derived, File, CommandLine };
  Kind kind = Kind::Default;
  std::string file;
  int64_t line = 0;  // from 1; 0: the file as a whole
  int64_t column = 0;

  /// "default", "derived", "configs/a.toml:12:1" or "command line".
  std::string text() const;
};

struct RunConfig {
  RunTable run;
  ModelConfig model;
  MoeConfig moe;
  ParallelTable parallel;
  BatchTable batch;
  OptimizerTable optimizer;
  ActivationOffloadTable activation_offload;
  RecomputeTable recompute;
  LayerOffloadTable layer_offload;
  PagedStashTable paged_stash;
  CudaGraphTable cuda_graph;
  CheckpointTable checkpoint;
  DataTable data;
  DebugTable debug;

  /// By path ("moe.router.score"); a path that is absent has its default.
  std::map<std::string, Origin> origins;

  Origin origin(const std::string& path) const;
  GptConfig gpt() const { return {model, moe, run.deterministic}; }

  /// The smallest number of ranks that both grids divide.
  int64_t fewest_ranks() const;
  /// Ranks that hold the same dense weights, 0 if `ranks` does not divide.
  int64_t data_parallel(int64_t ranks) const;
  /// Samples of one optimizer step: batch.global, or batch.micro for every data-parallel rank.
  int64_t global_batch(int64_t ranks) const;
  /// Micro-batches that each data-parallel rank runs in one step.
  int64_t num_microbatches(int64_t ranks) const;
  /// Parts of the model that each pipeline rank holds: parallel.virtual_stages, or what
  /// parallel.layout says. 1 for a layout that cannot be read.
  int64_t virtual_stages() const;
  /// Micro-batches that a virtual stage runs in a row: parallel.microbatch_group, or
  /// parallel.pipeline.
  int64_t microbatch_group() const;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Table{.key = "run", .doc = "The length of a run and where it writes."}, &RunConfig::run);
    visit(Table{.key = "model",
                .doc = "A decoder-only transformer: RMSNorm, rotary embedding, SwiGLU, no biases."},
          &RunConfig::model);
    visit(Table{.key = "moe", .doc = "The experts of a Mixture-of-Experts model."},
          &RunConfig::moe);
    visit(Table{.key = "parallel",
                .doc = "How many ranks share one copy of the model. The ranks that remain are data "
                       "parallel."},
          &RunConfig::parallel);
    visit(Table{.key = "batch", .doc = "Samples of a step."}, &RunConfig::batch);
    visit(
        Table{.key = "optimizer", .doc = "The update rule and the schedule of the learning rate."},
        &RunConfig::optimizer);
    visit(
        Table{.key = "activation_offload", .doc = "Activations wait for backward in host memory."},
        &RunConfig::activation_offload);
    visit(Table{.key = "recompute", .doc = "Activations are computed again in backward."},
          &RunConfig::recompute);
    visit(Table{.key = "layer_offload", .doc = "Whole layers wait in host memory."},
          &RunConfig::layer_offload);
    visit(Table{.key = "paged_stash", .doc = "Activations of experts in pages of a fixed pool."},
          &RunConfig::paged_stash);
    visit(Table{.key = "cuda_graph", .doc = "Replay recorded work."}, &RunConfig::cuda_graph);
    visit(
        Table{.key = "checkpoint", .doc = "When to save, what to keep, and where to resume from."},
        &RunConfig::checkpoint);
    visit(Table{.key = "data", .doc = "The token files."}, &RunConfig::data);
    visit(Table{.key = "debug", .doc = "For tests and for finding faults."}, &RunConfig::debug);
  }
};

/// The complete configuration as TOML that reads back to the same values, each value followed by a
/// comment with its origin. Unset values are comments.
std::string resolved_toml(const RunConfig& config);

/// The part of resolved_toml that a file, the command line or another value decided.
std::string decided_toml(const RunConfig& config);

/// The TOML text of one value, empty if it is unset or there is no such path.
std::string value_text(const RunConfig& config, const std::string& path);

/// Fills what follows from other values (see derive_defaults) and names the run after the file.
void derive_run_defaults(RunConfig& config, const std::string& config_path);

/// docs/config.md: every key with its type, default and meaning.
std::string config_markdown();

}  // namespace ferry
