#pragma once

// The products of a configuration's experts, beside dense products of the same number of
// operations.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/bench.h"
#include "app/run_config.h"
#include "core/comm/runtime.h"

namespace ferry {

struct GemmBenchOptions {
  std::vector<int64_t> rows_per_expert;  // empty: those of the configuration's micro-batch
  bool edge = false;                     // also row counts where kernels' tiles end
  // A GPU holds its highest clock only for a moment. false: in bursts, after a pause of 0.3 s and 3
  // calls the median of 10. true: after calls for `sustained_s`, the median of calls for as long.
  bool sustained = false;
  double sustained_s = 0.3;
  uint64_t seed = 0;  // of operands, row counts and the elements that are checked
  bool json = false;
  std::string command;
};

/// One product of one distribution of rows over the experts.
struct GemmRow {
  std::string name;   // "fc1 forward"
  std::string shape;  // "64 experts, 131072 x 2048 x 1024": R x N x K
  std::string distribution;
  int64_t rows_per_expert = 0;
  double max_over_mean = 0;
  double flops = 0;
  CallTimes times;
  CallTimes ceiling;  // of one batch of dense products with equal rows, measured just before
  /// Of rows in place: of the same product of rows in their order, measured just before.
  std::optional<CallTimes> contiguous = {};

  double rate() const { return flops / times.median; }
  double ceiling_rate() const { return flops / ceiling.median; }
  double of_contiguous() const { return contiguous.value().median / times.median; }
};

/// fc1 and fc2, each forward, dgrad and wgrad, in the configuration's precision with all experts on
/// this device, for every distribution of app/row_counts.h; of fc1 also with SwiGLU, and that and
/// wgrad of rows in place, as with moe.gather: those of moe.top_k experts' choices of each token
/// (or of the largest common divisor of that and all rows), at random and by token in an expert.
/// Each is checked (app/product_check.h) before it is timed, and so is the ceiling:
/// Error(ExitCode::Internal) if one is wrong.
/// `each` hears of every row when it has been measured.
/// Error(ExitCode::Usage) without experts or for more rows than 32-bit offsets count.
void measure_gemm(Stream& stream, const RunConfig& config, const GemmBenchOptions& options,
                  const std::function<void(const GemmRow&)>& each);

/// Prints that, row by row. Error(ExitCode::Usage) on more than one rank.
ExitCode bench_gemm(const RunConfig& config, Runtime& runtime, const GemmBenchOptions& options);

}  // namespace ferry
