#include "app/optimizer_offload.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "app/gib.h"
#include "app/host_sum.h"
#include "app/param_groups.h"
#include "core/check.h"
#include "core/vector_level.h"
#include "offload/optimizer_fraction.h"

namespace ferry {
namespace {

// With overlap, a step knows of the update before; the first one touches memory for the first time.
constexpr int64_t kMeasuredAfter = 3;
constexpr int64_t kOutcomeAfter = 6;

std::string describe(const UpdateTimes& times) {
  return fmt::format(
      "optimizer on the host: {:.3f} s for {:.3g} parameters (gradients to the host {:.3f} s, "
      "update {:.3f} s, values to the device {:.3f} s), {:.3f} s exposed",
      times.wall, static_cast<double>(times.host_elements), times.d2h, times.cpu_update, times.h2d,
      times.exposed);
}

}  // namespace

std::string few_threads_notice(int num_threads, int num_ranks, int num_cpus) {
  constexpr int kEnough = 16;
  const int share = num_cpus / num_ranks;
  if (2 * num_threads >= std::min(share, kEnough)) return "";
  return concat("! optimizer on the host: the launcher lets this rank have ", num_threads,
                " of the host's ", num_cpus, " CPUs, though ", share,
                " are its share. mpirun binds each rank to a core where there are two; try "
                "--bind-to none");
}

OptimizerOffload::OptimizerOffload(const RunConfig& config, TrainModel& model, Runtime& runtime,
                                   Group& world)
    : config_(config), model_(model), runtime_(runtime), world_(world) {}

std::vector<std::string> OptimizerOffload::begin() {
  dump_places();
  const HybridDeviceOptimizer* hybrid = model_.hybrid_optimizer();
  if (hybrid == nullptr) return {};
  std::vector<std::string> lines = {
      optimizer_places_text(hybrid->places()),
      fmt::format("optimizer on the host: threads {}, vectors {}, copies {}", hybrid->num_threads(),
                  name_of(vector_level()),
                  config_.optimizer.offload.overlap_d2h_h2d ? "overlap" : "one after the other")};
  if (config_.optimizer.offload.threads == 0) {
    const std::string notice = few_threads_notice(hybrid->num_threads(), runtime_.local_size(),
                                                  static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
    if (!notice.empty()) lines.push_back(notice);
  }
  return lines;
}

void OptimizerOffload::dump_places() {
  const std::string& path = config_.optimizer.offload.dump_param_groups;
  if (path.empty()) return;
  const HybridDeviceOptimizer* hybrid = model_.hybrid_optimizer();
  write_param_groups(path, hybrid == nullptr ? 0.0 : hybrid->fraction(), model_.optimizer_places(),
                     runtime_.control());
}

void OptimizerOffload::add_times(StepReport& report, const UpdateTimes& times) {
  std::vector<double> sums{static_cast<double>(times.d2h_bytes),
                           static_cast<double>(times.h2d_bytes),
                           times.exposed,
                           times.d2h,
                           times.cpu_update,
                           times.h2d,
                           times.wall};
  sum_over_ranks(sums, world_, model_.model().stream());
  if (sums[0] == 0) return;  // no rank has a part on the host, or the first update is under way
  const auto mean = [&](size_t i) { return sums[i] / runtime_.size(); };
  report.d2h_bytes["optimizer"] = sums[0];
  report.h2d_bytes["optimizer"] = sums[1];
  report.offload_exposed_s["optimizer"] = mean(2);
  report.optimizer_update_s = {
      {"d2h", mean(3)}, {"cpu_update", mean(4)}, {"h2d", mean(5)}, {"wall", mean(6)}};
}

std::vector<std::string> OptimizerOffload::after_step(StepReport& report) {
  const HybridDeviceOptimizer* hybrid = model_.hybrid_optimizer();
  if (hybrid == nullptr) return {};
  const UpdateTimes times = hybrid->times();
  add_times(report, times);
  ++steps_;
  const bool automatic = !config_.optimizer.offload.fraction;
  std::vector<std::string> lines;
  if (steps_ == kMeasuredAfter && times.host_elements > 0) lines.push_back(describe(times));
  if (steps_ == kMeasuredAfter && automatic) lines.push_back(choose(report, times));
  if (steps_ == kOutcomeAfter && automatic) {
    lines.push_back(fmt::format(
        "optimizer.offload.fraction = auto: the step takes {:.3f} s now, {:.3f} s at fraction {:g}",
        report.seconds, seconds_before_, fraction_before_));
    if (times.host_elements > 0) lines.push_back(describe(times));
  }
  return lines;
}

std::string OptimizerOffload::choose(const StepReport& report, const UpdateTimes& times) {
  HybridDeviceOptimizer& hybrid = *model_.hybrid_optimizer();
  Device& device = model_.model().stream().device();
  const auto num_micro = static_cast<double>(config_.num_microbatches(runtime_.size()));
  OptimizerRates rates;
  // A rank without parameters has nothing to choose.
  rates.host_elements_per_s =
      times.host_elements > 0 ? static_cast<double>(times.host_elements) / times.wall : 1e9;
  // Forward is a third of a micro-batch's passes.
  rates.forward_s =
      std::max(0.0, report.seconds - report.optimizer_seconds - times.exposed) / num_micro / 3;
  // What steps need at their peak and give back between them is not free.
  const int64_t free = device.free_bytes() - (device.memory().peak() - device.memory().current()) -
                       device_reserve(device.total_bytes());
  const OptimizerOffloadTable& offload = config_.optimizer.offload;
  const HostPart part = offload.takes_last() ? HostPart::Last : HostPart::First;
  std::vector<int64_t> bytes;
  for (const Parameter* parameter : hybrid.parameters())
    bytes.push_back(hybrid.device_state_bytes(*parameter));
  const FractionChoice own =
      choose_fraction(offload.auto_goal == "hidden" ? FractionGoal::Hidden : FractionGoal::Memory,
                      hybrid.parameters(), bytes, part, free, rates);

  // All ranks take the largest, so that a run is the same everywhere.
  std::vector<double> fractions(static_cast<size_t>(runtime_.size()));
  fractions[static_cast<size_t>(runtime_.rank())] = own.fraction;
  sum_over_ranks(fractions, world_, model_.model().stream());
  const FractionChoice choice =
      predict_fraction(*std::max_element(fractions.begin(), fractions.end()), hybrid.parameters(),
                       bytes, part, rates);
  seconds_before_ = report.seconds;
  fraction_before_ = hybrid.fraction();
  hybrid.set_fraction(model_.model().stream(), choice.fraction);
  dump_places();
  return fmt::format(
      "optimizer.offload.fraction = auto: {:g} from now on, {:.2f} GiB of state on the device, "
      "where {:.2f} GiB are free; the host updates {:.2f} G parameters/s, so its part should take "
      "{:.3f} s, {:.3f} s of it exposed (predicted; goal: {})",
      choice.fraction, gib(choice.device_bytes), gib(std::max<int64_t>(0, free)),
      rates.host_elements_per_s / 1e9, choice.update_s, choice.exposed_s, offload.auto_goal);
}

}  // namespace ferry
