#include "app/bench_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "app/backend.h"
#include "app/bench_operands.h"
#include "app/gemm_cache.h"
#include "app/product_check.h"
#include "app/row_counts.h"
#include "core/host_copy.h"

namespace ferry {
namespace {

constexpr std::chrono::milliseconds kPause{300};
constexpr int64_t kBurstWarmup = 3, kBurstSamples = 10;
constexpr int64_t kFewestSamples = 5, kMostSamples = 100;

// `samples` times of `calls` calls each, by the clock of the device and without a gap.
CallTimes time_samples(Stream& stream, const std::function<void()>& enqueue, int64_t samples,
                       int64_t calls) {
  std::vector<std::shared_ptr<const TimeStamp>> stamps{stream.stamp()};
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t i = 0; i < calls; ++i) enqueue();
    stamps.push_back(stream.stamp());
  }
  std::vector<double> times;
  for (size_t i = 1; i < stamps.size(); ++i)
    times.push_back(stamps[i]->seconds_since(*stamps[i - 1]) / static_cast<double>(calls));
  stream.synchronize();  // throws the error of a call that failed
  return call_times(times);
}

CallTimes time_burst(Stream& stream, const std::function<void()>& enqueue) {
  stream.synchronize();
  if (!stream.device().is_cpu()) std::this_thread::sleep_for(kPause);
  for (int64_t i = 0; i < kBurstWarmup; ++i) enqueue();
  return time_samples(stream, enqueue, kBurstSamples, 1);
}

CallTimes time_sustained(Stream& stream, const std::function<void()>& enqueue, double seconds) {
  enqueue();
  const double once = time_samples(stream, enqueue, 1, 1).median;
  const auto wanted = static_cast<int64_t>(std::ceil(seconds / once));
  const int64_t samples = std::clamp(wanted, kFewestSamples, kMostSamples);
  const int64_t calls = (std::max(wanted, samples) + samples - 1) / samples;
  for (int64_t i = 0; i < samples * calls; ++i) enqueue();
  return time_samples(stream, enqueue, samples, calls);
}

// All slots in a random order, but those of each group by token.
std::vector<int32_t> random_slots(const std::vector<int64_t>& counts, uint64_t seed) {
  std::vector<int32_t> slots(
      static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0})));
  std::iota(slots.begin(), slots.end(), 0);
  std::mt19937_64 generator(seed);
  std::shuffle(slots.begin(), slots.end(), generator);
  auto begin = slots.begin();
  for (const int64_t count : counts) {
    std::sort(begin, begin + count);
    begin += count;
  }
  return slots;
}

class GemmBench : BenchOperands {
 public:
  GemmBench(Stream& stream, const RunConfig& config, const GemmBenchOptions& options,
            const std::function<void(const GemmRow&)>& each)
      : BenchOperands(stream, dtype_of(config.model.precision), options.seed),
        options_(options),
        each_(each),
        experts_(config.moe.experts),
        top_k_(config.moe.top_k) {}

  // The layer y [R, n] = x [R, k] * weight [E, n, k]^T.
  void layer(const std::string& name, int64_t n, int64_t k, int64_t rows_per_expert) {
    const int64_t rows = experts_ * rows_per_expert;
    const Tensor x = random({rows, k}), dy = random({rows, n}), weight = random({experts_, n, k});
    const Tensor y = output({rows, n}), dx = output({rows, k});
    const Tensor dweight = output(weight.shape(), accumulate_dtype(dtype_));
    begin(rows_per_expert, n, k);
    pass(name + " forward", {GroupedPass::Forward, "", y, x, weight, {}});
    pass(name + " dgrad", {GroupedPass::Dgrad, "", dy, dx, weight, {}});
    pass(name + " wgrad", {GroupedPass::Wgrad, "", dy, x, dweight, {}});
  }

  // Its products with rows in place beside those with rows in their order, and SwiGLU: n = 2 F.
  void rows_in_place(const std::string& name, int64_t n, int64_t k, int64_t rows_per_expert) {
    const int64_t rows = experts_ * rows_per_expert, tokens = rows / std::gcd(rows, top_k_);
    const Tensor x = random({rows, k}), x_of_tokens = random({tokens, k});
    const Tensor y = output({rows, n}), dy = random({rows, n}), h = output({rows, n / 2});
    const Tensor prob = random({rows}, accumulate_dtype(dtype_));
    const Tensor weight = random({experts_, n, k});
    const Tensor dweight = output(weight.shape(), accumulate_dtype(dtype_));
    begin(rows_per_expert, n, k);
    const GroupedProduct swiglu{GroupedPass::Forward, "", y, x, weight, {}, h, prob};
    pass(name + " swiglu", swiglu);
    pass(name + " swiglu gathered", swiglu, x_of_tokens);
    pass(name + " wgrad gathered", {GroupedPass::Wgrad, "", dy, x, dweight, {}}, x_of_tokens);
  }

 private:
  void begin(int64_t rows_per_expert, int64_t n, int64_t k) {
    row_.shape =
        fmt::format("{} experts, {} x {} x {}", experts_, experts_ * rows_per_expert, n, k);
    row_.rows_per_expert = rows_per_expert;
    distributions_ = distribute_rows(experts_, rows_per_expert, options_.seed, options_.edge);
  }

  // With `x_of_tokens`, the product of rows of those in place beside that of x.
  void pass(const std::string& name, GroupedProduct product, const Tensor& x_of_tokens = {}) {
    GroupedProduct batch = product;
    batch.h = batch.prob = Tensor();
    const auto dense = [&] { batch.enqueue_batched(stream_); };
    batch.counts = distributions_.front().counts;
    batch.name = name + ", one batch of dense products";
    check(batch, dense);
    for (const RowCounts& rows : distributions_) {
      product.counts = rows.counts;
      product.name =
          fmt::format("{}, {}, {} rows per expert", name, rows.distribution, row_.rows_per_expert);
      const Tensor offsets = product.offsets(stream_);
      GroupedProduct measured = product;
      if (x_of_tokens.defined()) {
        measured.x = x_of_tokens;
        measured.slot_of_row = from_host(
            stream_, "bench slots", random_slots(rows.counts, options_.seed), {product.x.dim(0)});
      }
      const auto grouped = [&] { measured.enqueue(stream_, offsets); };
      check(measured, grouped);
      row_.name = name;
      row_.distribution = rows.distribution;
      row_.max_over_mean = rows.max_over_mean();
      row_.flops = product.flops();
      row_.ceiling = time(dense);
      row_.contiguous.reset();
      if (x_of_tokens.defined()) row_.contiguous = time([&] { product.enqueue(stream_, offsets); });
      row_.times = time(grouped);
      each_(row_);
    }
  }

  void check(const GroupedProduct& product, const std::function<void()>& enqueue) {
    const ProductCheck check(stream_, product, next_key());
    enqueue();
    check.expect_right();
  }

  CallTimes time(const std::function<void()>& enqueue) {
    return options_.sustained ? time_sustained(stream_, enqueue, options_.sustained_s)
                              : time_burst(stream_, enqueue);
  }

  const GemmBenchOptions& options_;
  const std::function<void(const GemmRow&)>& each_;
  int64_t experts_, top_k_;
  std::vector<RowCounts> distributions_;
  GemmRow row_;
};

std::vector<int64_t> chosen_rows(const RunConfig& config, const GemmBenchOptions& options) {
  const int64_t experts = config.moe.experts;
  if (experts == 0)
    fail(ExitCode::Usage,
         "error: ferry bench gemm measures the products of experts, and moe.experts is 0\n  try : "
         "ferry bench ops for dense products");
  std::vector<int64_t> rows = options.rows_per_expert;
  if (rows.empty()) {
    const int64_t tokens = config.batch.micro * config.model.seq;
    rows.push_back(std::max<int64_t>(1, tokens * config.moe.top_k / experts));
  }
  const int64_t most = std::numeric_limits<int32_t>::max() / experts;
  for (const int64_t count : rows)
    if (count > most)
      fail(ExitCode::Usage, "error: ", count, " rows for each of ", experts,
           " experts are too many\n  why : rows are counted in 32 bits\n  try : --rows-per-expert ",
           most, " or fewer");
  return rows;
}

std::string table_head() {
  return fmt::format("{:<19} {:<36} {:<11} {:>8} {:>11} {:>9} {:>9} {:>10} {:>13}\n", "name",
                     "shape", "rows", "max/mean", "median us", "TFLOP/s", "ceiling", "of ceiling",
                     "of contiguous");
}

std::string table_row(const GemmRow& row) {
  const std::string text = fmt::format(
      "{:<19} {:<36} {:<11} {:>8.2f} {:>11.1f} {:>9.3f} {:>9.3f} {:>9.1f}%", row.name, row.shape,
      row.distribution, row.max_over_mean, 1e6 * row.times.median, row.rate() / 1e12,
      row.ceiling_rate() / 1e12, 100 * row.rate() / row.ceiling_rate());
  return row.contiguous ? fmt::format("{} {:>12.1f}%\n", text, 100 * row.of_contiguous())
                        : text + "\n";
}

std::string json_of(const GemmRow& row, const RunConfig& config, const std::string& machine,
                    const GemmBenchOptions& options) {
  nlohmann::ordered_json object = {{"bench", "gemm"}, {"config", config.run.name}};
  object["name"] = row.name;
  object["shape"] = row.shape;
  object["dtype"] = name_of(dtype_of(config.model.precision));
  object["distribution"] = row.distribution;
  object["rows_per_expert"] = row.rows_per_expert;
  object["max_over_mean"] = row.max_over_mean;
  object["regime"] = options.sustained ? "sustained" : "burst";
  object["seed"] = options.seed;
  add_times(object, row.times);
  object["tflops"] = row.rate() / 1e12;
  object["ceiling_tflops"] = row.ceiling_rate() / 1e12;
  object["of_ceiling"] = row.rate() / row.ceiling_rate();
  if (row.contiguous) object["of_contiguous"] = row.of_contiguous();
  add_origin(object, machine, options.command);
  return object.dump() + "\n";
}

}  // namespace

void measure_gemm(Stream& stream, const RunConfig& config, const GemmBenchOptions& options,
                  const std::function<void(const GemmRow&)>& each) {
  GemmBench bench(stream, config, options, each);
  const int64_t hidden = config.model.hidden, ffn = config.moe.ffn;
  for (const int64_t rows : chosen_rows(config, options)) {
    bench.layer("fc1", 2 * ffn, hidden, rows);
    bench.rows_in_place("fc1", 2 * ffn, hidden, rows);
    bench.layer("fc2", hidden, ffn, rows);
  }
}

ExitCode bench_gemm(const RunConfig& config, Runtime& runtime, const GemmBenchOptions& options) {
  if (runtime.size() > 1)
    fail(ExitCode::Usage, "error: ferry bench gemm runs on one rank, not ", runtime.size(),
         "\n  why : it measures one device, with all experts on it\n  try : ", options.command);
  const Backend backend = choose_backend(config, runtime);
  open_gemm_cache(config, /*may_record=*/true, backend.device(), runtime.control());
  const auto stream = backend.device().make_stream("bench");
  if (!options.json)
    std::cout << fmt::format("{}, seed {}; ceiling: one batch of dense products with equal rows\n",
                             options.sustained ? "sustained" : "burst", options.seed)
              << table_head();
  measure_gemm(*stream, config, options, [&](const GemmRow& row) {
    std::cout << (options.json ? json_of(row, config, backend.device().name(), options)
                               : table_row(row))
              << std::flush;
  });
  return ExitCode::Done;
}

}  // namespace ferry
