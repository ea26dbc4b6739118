#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/check_cuda.h"
#include "core/device_cuda.h"
#include "core/ops/gemm_kernels.h"
#include "core/ops/gemm_plan_cuda.h"
#include "core/ops/gemm_tuning.h"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

constexpr int kMostCandidates = 16;
// A short product is timed together with others of itself, since a stamp takes a few microseconds.
constexpr double kTimedSeconds = 2e-4;
constexpr double kMostTimedAtOnce = 50;

struct Product {
  const Tensor& c;
  const Tensor& a;
  const Tensor& b;
  double beta;
};

struct PlannedGemm {
  explicit PlannedGemm(const GemmKind& kind) : plan(kind) {}

  GemmPlan plan;
  cublasLtMatmulAlgo_t algorithm{};
};

cublasLtMatmulAlgo_t from_words(const GemmAlgorithm& words) {
  cublasLtMatmulAlgo_t algorithm{};
  static_assert(sizeof algorithm == sizeof words);
  std::copy(words.begin(), words.end(), std::begin(algorithm.data));
  return algorithm;
}

GemmAlgorithm to_words(const cublasLtMatmulAlgo_t& algorithm) {
  GemmAlgorithm words{};
  std::copy(std::begin(algorithm.data), std::end(algorithm.data), words.begin());
  return words;
}

// Where products that only measure write. One that replaces c may write there, since the real one
// follows on the same stream; one that adds to c adds to other memory, of the same alignment.
class Target {
 public:
  Target(Stream& stream, const Product& product, int64_t alignment) : pointer_(product.c.raw()) {
    if (product.beta == 0) return;
    memory_ =
        Tensor::empty(stream, "gemm measurement", {product.c.bytes() + kMostAlignment}, DType::U8);
    stream.zero(memory_);
    pointer_ = static_cast<std::byte*>(memory_.raw()) + alignment % kMostAlignment;
  }
  void* get() const { return pointer_; }

 private:
  static constexpr int64_t kMostAlignment = 256;

  Tensor memory_;
  void* pointer_;
};

// The caller's own operands are multiplied, so that the numbers, on which the clock of a GPU
// depends, are not all zero.
std::pair<GemmMeasurement, cublasLtMatmulAlgo_t> measure(Stream& stream, const GemmPlan& plan,
                                                         const GemmKind& kind,
                                                         const Product& product) {
  const auto candidates = plan.candidates(stream, kMostCandidates);
  const Target target(stream, product, kind.c.alignment);
  const auto seconds_of = [&](size_t candidate, int64_t calls) {
    const auto start = stream.stamp();
    for (int64_t i = 0; i < calls; ++i)
      plan.run(stream, target.get(), product.a.raw(), product.b.raw(), product.beta,
               candidates[candidate]);
    return stream.stamp()->seconds_since(*start) / static_cast<double>(calls);
  };
  seconds_of(0, 1);  // loads the kernel
  const double once = std::max(seconds_of(0, 1), 1e-7);
  const auto calls =
      static_cast<int64_t>(std::clamp(std::ceil(kTimedSeconds / once), 1.0, kMostTimedAtOnce));
  const GemmChoice choice = choose_gemm(
      candidates.size(), [&](size_t candidate) { return seconds_of(candidate, calls); });
  const cublasLtMatmulAlgo_t& algorithm = candidates[choice.candidate];
  return {{to_words(algorithm), 1e6 * choice.seconds, 1e6 * choice.heuristic_seconds}, algorithm};
}

// An algorithm is chosen once for a kind, so that equal products give equal bits throughout a
// process.
cublasLtMatmulAlgo_t choose_algorithm(Stream& stream, const GemmPlan& plan, const GemmKind& kind,
                                      const Product& product, const GemmTuning& tuning) {
  const auto heuristic = [&] { return plan.candidates(stream, 1).front(); };
  if (tuning.known.empty() && tuning.unknown == UnknownGemm::Heuristic) return heuristic();
  const std::string name = kind.text();
  if (const auto found = tuning.known.find(name); found != tuning.known.end()) {
    const cublasLtMatmulAlgo_t algorithm = from_words(found->second.algorithm);
    if (plan.accepts(stream, algorithm)) return algorithm;
    if (tuning.on_notice)
      tuning.on_notice(concat("cuBLAS does not take the measured algorithm of ", name));
  }
  if (tuning.unknown == UnknownGemm::Heuristic || as_cuda(stream).is_captured()) return heuristic();
  const auto [measurement, fastest] = measure(stream, plan, kind, product);
  if (tuning.on_measured) tuning.on_measured(name, measurement);
  return tuning.unknown == UnknownGemm::Measure ? fastest : heuristic();
}

// Shared, so that a plan which another thread drops with its tuning can still be run here.
std::shared_ptr<const PlannedGemm> plan_for(Stream& stream, const GemmKind& kind,
                                            const Product& product) {
  using Key = std::pair<int, GemmKind>;  // ordinal of the device
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const PlannedGemm>> plans;
  static std::shared_ptr<const GemmTuning> planned_by;
  const std::shared_ptr<const GemmTuning> tuning = gemm_tuning();
  std::lock_guard lock(mutex);
  if (planned_by != tuning) {
    plans.clear();
    planned_by = tuning;
  }
  const Key key{as_cuda(stream).handle()->ordinal(), kind};
  if (const auto found = plans.find(key); found != plans.end()) return found->second;
  const auto planned = std::make_shared<PlannedGemm>(kind);
  planned->algorithm = choose_algorithm(stream, planned->plan, kind, product, *tuning);
  plans.emplace(key, planned);
  count_gemm_plan();
  return planned;
}

// One product, or a batch of them.
void multiply(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
              const Tensor& b, Transpose transpose_b, double beta) {
  if (c.numel() == 0) return;
  if (a.numel() == 0) {  // a sum of nothing
    if (beta == 0) stream.zero(c);
    return;
  }
  as_cuda(stream).cuda_device().make_current();
  const GemmKind kind{GemmMatrix(c), GemmMatrix(a, transpose_a == Transpose::Yes),
                      GemmMatrix(b, transpose_b == Transpose::Yes), beta != 0};
  const auto planned = plan_for(stream, kind, {c, a, b, beta});
  planned->plan.run(stream, c.raw(), a.raw(), b.raw(), beta, planned->algorithm);
}

}  // namespace

void gemm(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, double beta) {
  multiply(stream, c, a, transpose_a, b, transpose_b, beta);
}

void gemm_batched(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
                  const Tensor& b, Transpose transpose_b, double beta) {
  multiply(stream, c, a, transpose_a, b, transpose_b, beta);
}

}  // namespace ferry::cuda
