#include "app/bench_dense.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/backend.h"
#include "app/bench_operands.h"
#include "core/ops/gemm.h"
#include "core/ops/gemm_tuning.h"

namespace ferry {
namespace {

constexpr int64_t kHeadTokens = 4096;  // as in ferry bench ops
constexpr int kRounds = 2;

// The heuristic chooses again at the end, also after an error.
struct TuningReset {
  TuningReset() = default;
  ~TuningReset() { set_gemm_tuning({}); }
  TuningReset(const TuningReset&) = delete;
  TuningReset& operator=(const TuningReset&) = delete;
};

void keep_better(CallTimes& best, const CallTimes& times) {
  if (times.median < best.median) best = times;
}

class DenseBench : BenchOperands {
 public:
  DenseBench(Stream& stream, const RunConfig& config)
      : BenchOperands(stream, dtype_of(config.model.precision)) {}

  // The layer y [m, n] = x [m, k] * weight [n, k]^T.
  void layer(const std::string& name, int64_t m, int64_t n, int64_t k) {
    const Tensor x = random({m, k}), dy = random({m, n}), weight = random({n, k});
    const Tensor y = output({m, n}), dx = output({m, k});
    const Tensor dweight = output({n, k}, accumulate_dtype(dtype_));
    stream_.zero(dweight);
    DenseRow made;
    made.shape = fmt::format("{} x {} x {}", m, n, k);
    made.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
    made.name = name + " forward";
    row(made, [&] { gemm(stream_, y, x, Transpose::No, weight, Transpose::Yes); });
    made.name = name + " dgrad";
    row(made, [&] { gemm(stream_, dx, dy, Transpose::No, weight, Transpose::No); });
    made.name = name + " wgrad";
    row(made, [&] { gemm(stream_, dweight, dy, Transpose::Yes, x, Transpose::No, 1); });
  }

  std::vector<DenseRow> rows() { return std::move(rows_); }

 private:
  void row(DenseRow made, const std::function<void()>& enqueue) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    made.heuristic = made.measured = {kNever, kNever};
    GemmTuning chosen;  // for the second round: what the first one measured
    chosen.unknown = UnknownGemm::Measure;
    for (int round = 0; round < kRounds; ++round) {
      set_gemm_tuning({});
      keep_better(made.heuristic, time_calls(stream_, enqueue));
      GemmTuning tuning = chosen;
      tuning.on_measured = [&](const std::string& kind, const GemmMeasurement& measurement) {
        chosen.known[kind] = measurement;
        made.differs = measurement.us != measurement.heuristic_us;
      };
      set_gemm_tuning(std::move(tuning));
      keep_better(made.measured, time_calls(stream_, enqueue));
    }
    rows_.push_back(made);
  }

  std::vector<DenseRow> rows_;
};

}  // namespace

std::vector<DenseRow> measure_dense(Stream& stream, const RunConfig& config) {
  if (stream.device().is_cpu())
    fail(ExitCode::Usage,
         "error: ferry bench gemm --dense compares algorithms of cuBLAS, and this run is on the CPU"
         "\n  try : run.backend=cuda, or ferry bench ops");
  const TuningReset reset;
  DenseBench bench(stream, config);
  const auto& model = config.model;
  const int64_t tokens = config.batch.micro * model.seq;
  bench.layer("qkv", tokens, model.q_width() + 2 * model.kv_width(), model.hidden);
  bench.layer("proj", tokens, model.hidden, model.q_width());
  bench.layer("lm_head", std::min(tokens, kHeadTokens), model.vocab, model.hidden);
  return bench.rows();
}

std::string dense_table(const std::vector<DenseRow>& rows) {
  std::string text = fmt::format("{:<16} {:<24} {:>13} {:>12} {:>9} {:>9}  {}\n", "name", "shape",
                                 "heuristic us", "measured us", "TFLOP/s", "speed-up", "algorithm");
  for (const DenseRow& row : rows)
    text += fmt::format("{:<16} {:<24} {:>13.1f} {:>12.1f} {:>9.3f} {:>9.3f}  {}\n", row.name,
                        row.shape, 1e6 * row.heuristic.median, 1e6 * row.measured.median,
                        row.rate() / 1e12, row.speedup(), row.differs ? "another" : "the same");
  return text;
}

std::string dense_json(const std::vector<DenseRow>& rows, const RunConfig& config,
                       const std::string& machine, const std::string& command) {
  std::string text;
  for (const DenseRow& row : rows) {
    nlohmann::ordered_json object = {{"bench", "gemm"}, {"config", config.run.name}};
    object["name"] = row.name;
    object["shape"] = row.shape;
    object["dtype"] = name_of(dtype_of(config.model.precision));
    add_times(object, row.measured);
    object["tflops"] = row.rate() / 1e12;
    object["heuristic_us"] = 1e6 * row.heuristic.median;
    object["heuristic_tflops"] = row.flops / row.heuristic.median / 1e12;
    object["speedup"] = row.speedup();
    object["differs"] = row.differs;
    add_origin(object, machine, command);
    text += object.dump() + "\n";
  }
  return text;
}

ExitCode bench_dense(const RunConfig& config, Runtime& runtime, bool json,
                     const std::string& command) {
  if (runtime.size() > 1)
    fail(ExitCode::Usage, "error: ferry bench gemm --dense runs on one rank, not ", runtime.size(),
         "\n  why : it measures one device\n  try : ", command);
  if (!config.run.gemm_cache.empty())
    fail(ExitCode::Usage,
         "error: ferry bench gemm --dense uses no file of measured algorithms, and run.gemm_cache "
         "is ",
         config.run.gemm_cache,
         "\n  why : it compares the heuristic's algorithm with the fastest, and measures both"
         "\n  try : run.gemm_cache=''; ferry bench gemm without --dense, and all other commands "
         "that multiply, take it");
  const Backend backend = choose_backend(config, runtime);
  const auto stream = backend.device().make_stream("bench");
  const std::vector<DenseRow> rows = measure_dense(*stream, config);
  std::cout << (json ? dense_json(rows, config, backend.device().name(), command)
                     : dense_table(rows))
            << std::flush;
  return ExitCode::Done;
}

}  // namespace ferry
