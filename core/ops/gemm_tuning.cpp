#include "core/ops/gemm_tuning.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/median.h"

namespace ferry {
namespace {

constexpr size_t kMostCalls = 7;
constexpr double kHopeless = 1.15;
constexpr double kNoise = 0.99;

struct Current {
  std::mutex mutex;
  std::shared_ptr<const GemmTuning> tuning = std::make_shared<GemmTuning>();
};

Current& current() {
  static Current value;
  return value;
}

std::atomic<int64_t>& plans() {
  static std::atomic<int64_t> count{0};
  return count;
}

}  // namespace

void set_gemm_tuning(GemmTuning tuning) {
  auto next = std::make_shared<const GemmTuning>(std::move(tuning));
  std::lock_guard lock(current().mutex);
  current().tuning.swap(next);
}

std::shared_ptr<const GemmTuning> gemm_tuning() {
  std::lock_guard lock(current().mutex);
  return current().tuning;
}

int64_t num_gemm_plans() { return plans(); }

void count_gemm_plan() { ++plans(); }

GemmChoice choose_gemm(size_t num_candidates, const std::function<double(size_t)>& seconds_of) {
  CHECK(num_candidates > 0, "no algorithm to choose from");
  double spent = 0;
  std::vector<std::vector<double>> times;
  const auto count_call = [&](size_t candidate) {
    const double seconds = seconds_of(candidate);
    times[candidate].push_back(seconds);
    spent += seconds;
  };
  for (size_t i = 0; i < num_candidates && (i == 0 || spent < kGemmTimingSeconds / 2); ++i) {
    times.emplace_back();
    seconds_of(i);
    count_call(i);
  }
  double least = times[0][0];
  for (const auto& calls : times) least = std::min(least, calls[0]);
  // In turns, so that a change of the clock meets all of them.
  for (size_t round = 1; round < kMostCalls; ++round)
    for (size_t i = 0; i < times.size(); ++i)
      if (times[i][0] <= kHopeless * least && spent < kGemmTimingSeconds) count_call(i);

  GemmChoice choice{0, median(times[0]), median(times[0])};
  for (size_t i = 1; i < times.size(); ++i) {
    const double seconds = median(times[i]);
    if (seconds < choice.seconds && seconds < kNoise * choice.heuristic_seconds)
      choice = {i, seconds, choice.heuristic_seconds};
  }
  return choice;
}

}  // namespace ferry
