// The part of a plan that is about the optimizer's state.

#include <fmt/format.h>

#include <algorithm>

#include "app/gib.h"
#include "app/optimizer_memory.h"
#include "app/plan.h"
#include "app/stage_table.h"

namespace ferry {
namespace {

double gb(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

// Of the stages, the one that moves most in a step.
const OptimizerBytes& busiest(const Plan& plan) {
  return std::max_element(plan.memory.begin(), plan.memory.end(),
                          [](const MemoryEstimate& a, const MemoryEstimate& b) {
                            return a.optimizer_bytes.d2h < b.optimizer_bytes.d2h;
                          })
      ->optimizer_bytes;
}

std::string fraction_text(const Plan& plan, const RunConfig& config) {
  const OptimizerOffloadTable& offload = config.optimizer.offload;
  const char* which = offload.takes_last() ? "last" : "first";
  if (offload.fraction)
    return fmt::format("{:g} of the parameters on the host, the {} ones", *offload.fraction, which);
  if (plan.chosen_fraction)
    return fmt::format(
        "{:g} of the parameters on the host, the {} ones: the smallest with 2 % of {:g} GiB free",
        *plan.chosen_fraction, which, gib(plan.rates.device_bytes));
  return fmt::format("chosen in the run{}; here all on the host",
                     offload.auto_goal == "memory" ? ", or from --device-gib" : "");
}

}  // namespace

std::string optimizer_table(const Plan& plan, const RunConfig& config) {
  StageTable table(plan);
  const auto row = [&](const char* name, int64_t OptimizerBytes::*bytes) {
    table.row(name, [&](size_t pp) { return plan.memory[pp].optimizer_bytes.*bytes; });
  };
  row("device masters", &OptimizerBytes::device_masters);
  row("device moments", &OptimizerBytes::device_moments);
  row("host masters", &OptimizerBytes::host_masters);
  row("host moments", &OptimizerBytes::host_moments);
  row("host gradients", &OptimizerBytes::gradient_staging);
  row("host weights", &OptimizerBytes::value_staging);
  std::string text = "\nits optimizer, GiB\n" + table.text();
  if (!config.optimizer.offload.enabled) return text;
  const OptimizerBytes& most = busiest(plan);
  const double link = plan.rates.link_bytes_per_s;
  text += fmt::format("  {:<16}{}\n", "fraction", fraction_text(plan, config));
  return text + fmt::format(
                    "  {:<16}{:.3f} GB to the host ({:.3f} s at {:g} GB/s), {:.3f} GB to "
                    "the device ({:.3f} s)\n",
                    "copies per step", gb(most.d2h), static_cast<double>(most.d2h) / link,
                    link / 1e9, gb(most.h2d), static_cast<double>(most.h2d) / link);
}

}  // namespace ferry
