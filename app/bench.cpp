#include "app/bench.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "app/version.h"
#include "core/median.h"
#include "core/ops/elementwise.h"
#include "core/ops/gemm.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 9;
constexpr double kSecondsPerRepetition = 0.02;
constexpr double kSustainedSeconds = 1;

double seconds_of(Stream& stream, const std::function<void()>& enqueue, int64_t calls) {
  stream.synchronize();
  const auto start = Clock::now();
  for (int64_t i = 0; i < calls; ++i) enqueue();
  stream.synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Tensor random_matrix(Stream& stream, const Shape& shape, DType dtype, uint32_t site) {
  const Tensor tensor = Tensor::empty(stream, "bench", shape, dtype);
  fill_normal(stream, tensor, 1.0, {1, 0, site}, 0);
  return tensor;
}

class SquareProduct {
 public:
  SquareProduct(Stream& stream, DType dtype)
      : stream_(stream),
        size_(stream.device().is_cpu() ? 1024 : 8192),
        a_(random_matrix(stream, {size_, size_}, dtype, 1)),
        b_(random_matrix(stream, {size_, size_}, dtype, 2)),
        c_(Tensor::empty(stream, "bench", {size_, size_}, dtype)) {}

  void enqueue() const { gemm(stream_, c_, a_, Transpose::No, b_, Transpose::Yes); }
  double flops() const { return 2 * std::pow(static_cast<double>(size_), 3); }

 private:
  Stream& stream_;
  int64_t size_;
  Tensor a_, b_, c_;
};

}  // namespace

CallTimes call_times(const std::vector<double>& seconds) {
  return {median(seconds), *std::min_element(seconds.begin(), seconds.end())};
}

CallTimes time_calls(Stream& stream, const std::function<void()>& enqueue) {
  seconds_of(stream, enqueue, 2);
  const double once = seconds_of(stream, enqueue, 1);
  const auto calls =
      std::clamp<int64_t>(static_cast<int64_t>(kSecondsPerRepetition / once), 1, 1000);
  std::vector<double> times;
  for (int i = 0; i < kRepetitions; ++i)
    times.push_back(seconds_of(stream, enqueue, calls) / static_cast<double>(calls));
  return call_times(times);
}

double measure_copy_ceiling(Stream& stream) {
  const int64_t elements = stream.device().is_cpu() ? int64_t{1} << 24 : int64_t{1} << 28;
  const Tensor from = random_matrix(stream, {elements}, DType::F32, 1);
  const Tensor to = Tensor::empty(stream, "bench", {elements}, DType::F32);
  const CallTimes times = time_calls(stream, [&] { stream.copy(to, from); });
  return 2.0 * static_cast<double>(from.bytes()) / times.median;
}

double measure_gemm_ceiling(Stream& stream, DType dtype) {
  const SquareProduct product(stream, dtype);
  return product.flops() / time_calls(stream, [&] { product.enqueue(); }).median;
}

double measure_sustained_gemm(Stream& stream, DType dtype) {
  const SquareProduct product(stream, dtype);
  const auto enqueue = [&] { product.enqueue(); };
  const double once = seconds_of(stream, enqueue, 2) / 2;
  const auto calls = static_cast<int64_t>(kSustainedSeconds / once) + 1;
  return product.flops() * static_cast<double>(calls) / seconds_of(stream, enqueue, calls);
}

std::string bench_table(const std::vector<BenchRow>& rows) {
  std::string text = fmt::format("{:<28} {:<34} {:>12} {:>12} {:>14} {:>10}\n", "name", "shape",
                                 "median us", "fastest us", "rate", "of ceiling");
  for (const BenchRow& row : rows) {
    const std::string rate = row.flops > 0 ? fmt::format("{:.3f} TFLOP/s", row.rate() / 1e12)
                                           : fmt::format("{:.1f} GB/s", row.rate() / 1e9);
    text += fmt::format("{:<28} {:<34} {:>12.1f} {:>12.1f} {:>14} {:>9.1f}%\n", row.name, row.shape,
                        row.times.median * 1e6, row.times.fastest * 1e6, rate,
                        100 * row.rate() / row.ceiling);
  }
  return text;
}

void add_times(nlohmann::ordered_json& row, const CallTimes& times) {
  row["median_us"] = 1e6 * times.median;
  row["fastest_us"] = 1e6 * times.fastest;
}

void add_origin(nlohmann::ordered_json& row, const std::string& machine,
                const std::string& command) {
  row["machine"] = machine;
  row["commit"] = git_revision();
  row["date"] = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  row["command"] = command;
}

std::string bench_json(const std::vector<BenchRow>& rows, const std::string& config,
                       const std::string& machine, const std::string& command) {
  std::string text;
  for (const BenchRow& row : rows) {
    nlohmann::ordered_json json = {
        {"bench", row.bench}, {"config", config}, {"name", row.name}, {"shape", row.shape}};
    add_times(json, row.times);
    json[row.flops > 0 ? "tflops" : "gb_per_s"] = row.rate() / (row.flops > 0 ? 1e12 : 1e9);
    json["of_ceiling"] = row.rate() / row.ceiling;
    add_origin(json, machine, command);
    text += json.dump() + "\n";
  }
  return text;
}

}  // namespace ferry
