#pragma once

// The dense products of a configuration's model by the algorithm that cuBLAS's heuristic proposes,
// and by the fastest of those that are measured (core/ops/gemm_tuning.h).

#include <string>
#include <vector>

#include "app/bench.h"
#include "app/run_config.h"
#include "core/comm/runtime.h"

namespace ferry {

struct DenseRow {
  std::string name;   // "qkv forward"
  std::string shape;  // "32768 x 6144 x 2048": tokens x outputs x inputs of the layer
  double flops = 0;
  CallTimes heuristic, measured;
  bool differs = false;  // the fastest is not the heuristic's

  double rate() const { return flops / measured.median; }
  double speedup() const { return heuristic.median / measured.median; }
};

/// qkv, proj and lm_head, each forward, dgrad and wgrad into FP32, with the tokens of a micro-batch
/// (lm_head: of a chunk). Both are timed twice, in turns, and the better median of each counts.
/// Error(ExitCode::Usage) on the CPU. Afterwards the heuristic chooses.
std::vector<DenseRow> measure_dense(Stream& stream, const RunConfig& config);

std::string dense_table(const std::vector<DenseRow>& rows);
/// One JSON object a row, with machine, commit and date.
std::string dense_json(const std::vector<DenseRow>& rows, const RunConfig& config,
                       const std::string& machine, const std::string& command);

/// Prints that. Error(ExitCode::Usage) on more than one rank, or with a run.gemm_cache.
ExitCode bench_dense(const RunConfig& config, Runtime& runtime, bool json,
                     const std::string& command);

}  // namespace ferry
