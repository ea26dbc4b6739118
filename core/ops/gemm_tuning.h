#pragma once

// Which cuBLASLt algorithm a kind of dense product takes on a GPU: the first that cuBLAS's
// heuristic proposes, one that is known from an earlier measurement, or the fastest of several that
// are timed at the first product of the kind. Without effect on the CPU.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace ferry {

/// The words of a cublasLtMatmulAlgo_t, which mean something to one version of cuBLAS only.
using GemmAlgorithm = std::array<uint64_t, 8>;

struct GemmMeasurement {
  GemmAlgorithm algorithm{};
  double us = 0;            // of one product
  double heuristic_us = 0;  // of one product by the heuristic's first algorithm, measured beside it

  bool operator==(const GemmMeasurement&) const = default;
};

/// By kind: shapes, dtypes, transposes, alignments in bytes and beta, as text.
using GemmMeasurements = std::map<std::string, GemmMeasurement>;

/// What becomes of a kind that is not known.
enum class UnknownGemm {
  Heuristic,  // takes the heuristic's algorithm
  Measure,    // takes the fastest
  Record,     // is measured for later; this process takes the heuristic's algorithm
};

/// The answers for one process. A product never changes its algorithm while these stay, and none is
/// measured while its stream is captured into a CUDA graph: then an unknown kind takes the
/// heuristic's algorithm.
struct GemmTuning {
  GemmMeasurements known;  // of this GPU model and this cuBLAS
  UnknownGemm unknown = UnknownGemm::Heuristic;
  /// Called for each kind that was measured, on the thread that enqueues the product.
  std::function<void(const std::string& kind, const GemmMeasurement&)> on_measured;
  /// Called if cuBLAS does not take an algorithm of `known`; the kind then counts as unknown.
  std::function<void(const std::string& notice)> on_notice;
};

/// For all products that are enqueued from now on; without a call the heuristic chooses.
void set_gemm_tuning(GemmTuning tuning);
/// What was set last; another object after every set_gemm_tuning.
std::shared_ptr<const GemmTuning> gemm_tuning();

/// How many kinds of products this process has chosen an algorithm for so far. If a step did not
/// raise the number, the same step measures nothing, and may be captured.
int64_t num_gemm_plans();
/// Raises that number: for the code that chooses.
void count_gemm_plan();

struct GemmChoice {
  size_t candidate = 0;
  double seconds = 0;            // median of its calls
  double heuristic_seconds = 0;  // of candidate 0
};

/// At most so long are the calls of one kind that count; each candidate's first does not.
constexpr double kGemmTimingSeconds = 0.1;

/// The candidate with the least median of up to 7 calls, or candidate 0 if it is within 1 % of
/// that, so that noise decides nothing. `seconds_of` makes one call. The first call of a candidate
/// is not counted: it may load the kernel. Candidates come in the order of the heuristic's
/// estimate, of which the last are left out when half of kGemmTimingSeconds is spent; those more
/// than 15 % behind after their first counted call have no second one.
GemmChoice choose_gemm(size_t num_candidates, const std::function<double(size_t)>& seconds_of);

}  // namespace ferry
