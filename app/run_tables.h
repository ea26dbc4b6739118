#pragma once

// The tables of a configuration that say what to train on, for how long and how: [run], [parallel],
// [batch], [checkpoint], [data], [debug]. The members have the names of the keys.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/optimizer_tables.h"
#include "core/fields.h"

namespace ferry {

/// [run]: the length of a run and where it writes.
struct RunTable {
  std::string name;
  std::string dir;
  int64_t steps = 0;
  std::optional<int64_t> stop_at_step;
  int64_t seed = 1234;
  std::string backend = "auto";
  bool deterministic = false;
  std::string gemm_cache;
  int64_t log_every = 1;
  int64_t eval_every = 0;
  int64_t eval_batches = 8;
  std::optional<double> time_limit_minutes;
  bool fresh = false;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "name", .doc = "name of the run; unset: the name of the configuration file"},
          &RunTable::name);
    visit(Field{.key = "dir", .doc = "directory that the run writes; unset: runs/NAME"},
          &RunTable::dir);
    visit(Field{.key = "steps",
                .doc = "optimizer steps of the whole run; schedules are made for it",
                .range = closed(1, 1e9),
                .required = true},
          &RunTable::steps);
    visit(Field{.key = "stop_at_step",
                .doc = "stop, with a save, after this step; schedules are unchanged",
                .range = at_least(1)},
          &RunTable::stop_at_step);
    visit(Field{.key = "seed",
                .doc = "of weights, dropout and the order of samples",
                .range = at_least(0)},
          &RunTable::seed);
    visit(Field{.key = "backend",
                .doc = "device; auto: a GPU if there is one and the precision is not fp64",
                .allowed = {"auto", "cpu", "cuda"}},
          &RunTable::backend);
    visit(Field{.key = "deterministic",
                .doc = "same bits in every run with the same ranks also on GPUs (the CPU's always "
                       "are): attention's backward takes longer"},
          &RunTable::deterministic);
    visit(Field{.key = "gemm_cache",
                .doc = "file of measured algorithms for dense products on a GPU, read and added "
                       "to; unset: those that cuBLAS proposes"},
          &RunTable::gemm_cache);
    visit(
        Field{
            .key = "log_every", .doc = "steps between two lines of the log", .range = at_least(1)},
        &RunTable::log_every);
    visit(Field{.key = "eval_every",
                .doc = "steps between two evaluations",
                .range = at_least(0),
                .zero = "never"},
          &RunTable::eval_every);
    visit(Field{.key = "eval_batches",
                .doc = "global batches of one evaluation",
                .range = closed(1, 1e6)},
          &RunTable::eval_batches);
    visit(
        Field{
            .key = "time_limit_minutes", .doc = "save and stop after this time", .range = above(0)},
        &RunTable::time_limit_minutes);
    visit(Field{.key = "fresh", .doc = "start anew in a directory that holds another run"},
          &RunTable::fresh);
  }
};

/// [parallel]: how many ranks share one copy of the model. The ranks that remain are data parallel.
struct ParallelTable {
  int64_t tensor = 1;
  bool sequence = false;
  int64_t expert = 1;
  int64_t expert_tensor = 1;
  int64_t pipeline = 1;
  int64_t virtual_stages = 1;
  int64_t microbatch_group = 0;
  std::string layout;
  int64_t context = 1;
  bool share_gpu = false;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "tensor",
                .doc = "ranks that share attention and dense matrices",
                .range = closed(1, 4096)},
          &ParallelTable::tensor);
    visit(Field{.key = "sequence",
                .doc = "share norms and residuals along the sequence too; needs tensor > 1"},
          &ParallelTable::sequence);
    visit(Field{.key = "expert",
                .doc = "ranks that share the experts of a layer",
                .range = closed(1, 4096)},
          &ParallelTable::expert);
    visit(Field{.key = "expert_tensor",
                .doc = "ranks that share the matrices of one expert",
                .range = closed(1, 4096)},
          &ParallelTable::expert_tensor);
    visit(Field{.key = "pipeline", .doc = "stages of the pipeline", .range = closed(1, 4096)},
          &ParallelTable::pipeline);
    visit(Field{.key = "virtual_stages",
                .doc = "parts of the model that each pipeline stage holds",
                .range = closed(1, 4096)},
          &ParallelTable::virtual_stages);
    visit(Field{.key = "microbatch_group",
                .doc = "micro-batches that a virtual stage runs in a row",
                .range = at_least(0),
                .zero = "as many as pipeline"},
          &ParallelTable::microbatch_group);
    visit(Field{.key = "layout", .doc = "layers of each stage, as in Et*3|tt|tt|t*2L; empty: even"},
          &ParallelTable::layout);
    visit(Field{.key = "context", .doc = "ranks that share one sequence", .range = closed(1, 4096)},
          &ParallelTable::context);
    visit(Field{.key = "share_gpu",
                .doc = "allow more ranks on a host than it has GPUs; slow, for tests"},
          &ParallelTable::share_gpu);
  }
};

/// [batch]: samples of a step.
struct BatchTable {
  int64_t micro = 1;
  int64_t global = 0;
  std::vector<int64_t> ramp;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "micro",
                .doc = "samples of one forward pass on one rank",
                .range = closed(1, 1e6)},
          &BatchTable::micro);
    visit(Field{.key = "global",
                .doc = "samples of one optimizer step over all ranks",
                .range = closed(0, 1e9),
                .zero = "micro * data-parallel ranks"},
          &BatchTable::global);
    visit(Field{.key = "ramp",
                .doc = "[first size, increment, samples of the ramp]; empty: no ramp",
                .range = at_least(0)},
          &BatchTable::ramp);
  }
};

/// [checkpoint]: when to save, what to keep, and where to resume from.
struct CheckpointTable {
  int64_t every = 0;
  int64_t keep = 3;
  bool async = true;
  std::string when_busy = "wait";
  double copy_gib = 0.0;
  std::string resume = "auto";
  std::vector<std::string> allow_changes;
  bool weights_only = false;
  bool save_at_exit = true;
  bool verify_after_save = true;

  /// Whether periodic saves are written while training goes on, and need memory for it.
  bool beside_training() const { return async && every > 0; }
  /// copy_gib in bytes, rounded up; 0: no limit.
  int64_t copy_bytes() const { return static_cast<int64_t>(std::ceil(copy_gib * (1 << 30))); }

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "every",
                .doc = "steps between two saves",
                .range = at_least(0),
                .zero = "only at exit"},
          &CheckpointTable::every);
    visit(Field{.key = "keep",
                .doc = "newest checkpoints that stay",
                .range = at_least(0),
                .zero = "all"},
          &CheckpointTable::keep);
    visit(Field{.key = "async",
                .doc = "write what is saved every so many steps while training goes on"},
          &CheckpointTable::async);
    visit(Field{.key = "when_busy",
                .doc = "a save is due while one is still being written: training waits for that "
                       "one, or skips the new one",
                .allowed = {"wait", "skip"}},
          &CheckpointTable::when_busy);
    visit(Field{.key = "copy_gib",
                .doc = "with async and state on the host, GiB of a rank for copies of what an "
                       "update changes before it is written; then the update waits",
                .range = at_least(0),
                .zero = "as much as the state"},
          &CheckpointTable::copy_gib);
    visit(Field{.key = "resume", .doc = "auto: the newest that verifies; none; or a path"},
          &CheckpointTable::resume);
    visit(Field{.key = "allow_changes",
                .doc = "keys or tables whose values may differ from those of the checkpoint that "
                       "the run resumes from, though that gives other numbers; or all"},
          &CheckpointTable::allow_changes);
    visit(
        Field{.key = "weights_only", .doc = "take the weights of the checkpoint and nothing else"},
        &CheckpointTable::weights_only);
    visit(Field{.key = "save_at_exit",
                .doc = "save when a run ends; one that is asked to stop always saves"},
          &CheckpointTable::save_at_exit);
    visit(Field{.key = "verify_after_save", .doc = "read every checkpoint back"},
          &CheckpointTable::verify_after_save);
  }
};

/// [data]: the token files.
struct DataTable {
  std::string kind = "megatron";
  std::vector<std::string> train;
  std::vector<std::string> valid;
  std::string split;
  std::string tokenizer;
  bool document_mask = false;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "kind",
                .doc = "format of the token files",
                .allowed = {"megatron", "llmc", "raw", "synthetic"}},
          &DataTable::kind);
    visit(Field{.key = "train",
                .doc = "prefixes of token files, or weight, prefix, weight, prefix, ...",
                .numbers = true},
          &DataTable::train);
    visit(Field{.key = "valid", .doc = "as train, for evaluation", .numbers = true},
          &DataTable::valid);
    visit(Field{.key = "split",
                .doc = "cut train into training, validation and test parts, as in 969,30,1"},
          &DataTable::split);
    visit(Field{.key = "tokenizer",
                .doc = "byte, a tokenizer.json, or a folder with encoder.json and vocab.bpe; "
                       "empty: ids only"},
          &DataTable::tokenizer);
    visit(Field{.key = "document_mask", .doc = "tokens see only their own document"},
          &DataTable::document_mask);
  }
};

/// [debug.throw_at]: a failure on purpose.
struct ThrowAtTable {
  std::optional<int64_t> rank;
  std::optional<int64_t> step;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "rank", .doc = "rank that fails", .range = at_least(0)},
          &ThrowAtTable::rank);
    visit(Field{.key = "step", .doc = "step at which it fails", .range = at_least(1)},
          &ThrowAtTable::step);
  }
};

/// [debug]: for tests and for finding faults.
struct DebugTable {
  std::string force_routing = "none";
  bool poison_memory = false;
  int64_t delay_copies_us = 0;
  int64_t delay_compute_us = 0;
  std::optional<int64_t> nonfinite_at_step;
  bool dump_routing = false;
  bool dump_token_loss = false;
  double slow_writer_mb_s = 0.0;
  bool save_step_0 = false;
  bool log_samples = false;
  ThrowAtTable throw_at;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(
        Field{
            .key = "force_routing",
            .doc = "none, balanced, uniform_random, all_to:[e, ...], skip:[e, ...] or power_law:a"},
        &DebugTable::force_routing);
    visit(Field{.key = "poison_memory", .doc = "fill freed and new memory with NaN"},
          &DebugTable::poison_memory);
    visit(Field{.key = "delay_copies_us",
                .doc = "microseconds added before each copy",
                .range = at_least(0)},
          &DebugTable::delay_copies_us);
    visit(Field{.key = "delay_compute_us",
                .doc = "microseconds added before each operation",
                .range = at_least(0)},
          &DebugTable::delay_compute_us);
    visit(Field{.key = "nonfinite_at_step",
                .doc = "make a gradient NaN at this step",
                .range = at_least(1)},
          &DebugTable::nonfinite_at_step);
    visit(Field{.key = "dump_routing", .doc = "write the experts of every token"},
          &DebugTable::dump_routing);
    visit(Field{.key = "dump_token_loss", .doc = "write the loss of every token"},
          &DebugTable::dump_token_loss);
    visit(Field{.key = "slow_writer_mb_s",
                .doc = "limit of the checkpoint writer, MB/s",
                .range = at_least(0),
                .zero = "none"},
          &DebugTable::slow_writer_mb_s);
    visit(Field{.key = "save_step_0", .doc = "save before the first step"},
          &DebugTable::save_step_0);
    visit(Field{.key = "log_samples",
                .doc = "write which samples were used, in order, to log/samples-*.jsonl"},
          &DebugTable::log_samples);
    visit(Table{.key = "throw_at", .doc = "A failure on purpose: the rank and the step."},
          &DebugTable::throw_at);
  }
};

}  // namespace ferry
