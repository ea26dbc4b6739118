#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "app/backend.h"
#include "app/bench.h"
#include "app/bench_steps.h"
#include "app/console.h"
#include "app/gemm_cache.h"
#include "app/gib.h"
#include "app/host_memory.h"
#include "app/model/cost_model.h"
#include "app/optimizer_offload.h"
#include "app/rank_memory.h"
#include "core/device_trace.h"
#include "core/median.h"

namespace ferry {
namespace {

// The host's part of the optimizer: seconds of the median update, and where its state is.
void add_update(nlohmann::ordered_json& row, TrainModel& model, const StepTimes& times) {
  HybridDeviceOptimizer* hybrid = model.hybrid_optimizer();
  if (hybrid == nullptr || times.updates.empty()) return;
  const auto of = [&](double UpdateTimes::*part) {
    std::vector<double> values;
    for (const UpdateTimes& update : times.updates) values.push_back(update.*part);
    return median(values);
  };
  row["host_fraction"] = hybrid->fraction();
  row["host_threads"] = hybrid->num_threads();
  row["host_elements"] = times.updates.back().host_elements;
  row["update_d2h_s"] = of(&UpdateTimes::d2h);
  row["update_cpu_s"] = of(&UpdateTimes::cpu_update);
  row["update_h2d_s"] = of(&UpdateTimes::h2d);
  row["update_s"] = of(&UpdateTimes::wall);
  row["update_exposed_s"] = of(&UpdateTimes::exposed);
  row["update_exposed_share"] = of(&UpdateTimes::exposed) / median(times.step);
  int64_t on_device = 0;
  for (const auto& usage : model.model().stream().device().memory().table())
    if (usage.name.starts_with("masters") || usage.name.starts_with("moments"))
      on_device += usage.current;
  row["device_state_gib"] = gib(on_device);
  row["host_state_gib"] = gib(hybrid->host_memory().current());
}

// Steps that are watched: their share with a busy GPU, and what it did.
struct WatchedSteps {
  static constexpr int64_t kSteps = 2;
  DeviceActivity activity;
  double seconds = 0;  // of all

  void add_to(nlohmann::ordered_json& row) const {
    constexpr double kSmallestShare = 1e-3;
    row["watched_step_s"] = seconds / kSteps;
    row["gpu_busy"] = activity.busy_seconds / seconds;
    for (const DeviceActivity::Work& work : activity.work) {
      if (work.seconds < kSmallestShare * seconds) break;
      row["kernels"].push_back({{"name", work.name},
                                {"calls", work.calls / kSteps},
                                {"s", work.seconds / kSteps},
                                {"of_step", work.seconds / seconds}});
    }
  }
};

std::string kernel_table(const nlohmann::ordered_json& kernels) {
  std::string text =
      fmt::format("\n{:>8} {:>10} {:>8}  {}\n", "calls", "ms a step", "of step", "kernel");
  for (const auto& kernel : kernels)
    text += fmt::format("{:>8} {:>10.3f} {:>7.1f}%  {}\n", kernel["calls"].get<int64_t>(),
                        1e3 * kernel["s"].get<double>(), 100 * kernel["of_step"].get<double>(),
                        kernel["name"].get<std::string>());
  return text;
}

}  // namespace

ExitCode bench_step(const RunConfig& config, Runtime& runtime, const StepBenchOptions& options) {
  const Backend backend = choose_backend(config, runtime);
  require_gpu_for_graphs(config, backend);
  if (options.kernels && backend.device().is_cpu())
    fail(ExitCode::Usage,
         "error: --kernels lists the kernels of a GPU, and this run is on the CPU\n"
         "  try : run.backend=cuda, or without --kernels");
  const Mesh mesh(runtime.size(), mesh_sizes(config.parallel));
  const MeshGroups groups(mesh, *backend.world);
  RunConfig unsaved = config;
  unsaved.checkpoint.every = 0;
  require_host_memory(stage_memory(unsaved, runtime.size(), mesh.at(runtime.rank()).pp), unsaved,
                      runtime.host_name(), runtime.control());
  open_gemm_cache(config, /*may_record=*/true, backend.device(), runtime.control());
  const auto stream = backend.device().make_stream("compute");
  TrainModel model(config, *stream, groups, runtime.local_size());
  Loader loader =
      step_loader(config, groups, options.warmup + options.steps + WatchedSteps::kSteps);

  const double step_tokens =
      static_cast<double>(config.global_batch(runtime.size()) * config.model.seq);
  OptimizerOffload optimizer_offload(config, model, runtime, *backend.world);
  const auto say = [&](const std::vector<std::string>& lines) {
    if (runtime.rank() != 0) return;
    for (const std::string& line : lines) std::cerr << line << std::endl;
  };
  say(optimizer_offload.begin());
  const auto measure = [&](int64_t before, int64_t warmup, int64_t steps) {
    return measure_steps(config, backend, model, loader, before + 1, warmup, steps,
                         [&](double seconds, double optimizer_seconds) {
                           StepReport report;
                           report.seconds = seconds;
                           report.optimizer_seconds = optimizer_seconds;
                           say(optimizer_offload.after_step(report));
                         });
  };
  measure(0, options.warmup, 0);
  // Beside other ranks it would be their rate, too.
  const bool is_alone = runtime.size() == 1 && !backend.device().is_cpu();
  const double sustained =
      is_alone ? measure_sustained_gemm(*stream, dtype_of(config.model.precision)) : 0;
  const StepTimes times = measure(options.warmup, 0, options.steps);
  WatchedSteps watched;
  if (options.kernels) {
    const auto trace = start_device_trace();
    const StepTimes watched_times = measure(options.warmup + options.steps, 0, watched.kSteps);
    watched.activity = trace->stop();
    watched.seconds = std::reduce(watched_times.step.begin(), watched_times.step.end());
  }
  if (runtime.rank() != 0) return ExitCode::Done;

  const double seconds = median(times.step);
  const double flops = flops_per_token(config.gpt()).total() * step_tokens / runtime.size();
  const double peak = peak_flops(backend.device().name(), config.model.precision);
  nlohmann::ordered_json row = {{"bench", "step"}, {"config", config.run.name}};
  row["ranks"] = runtime.size();
  row["layout"] = grid_text(config, mesh);
  row["tokens_per_step"] = step_tokens;
  row["micro_batch"] = config.batch.micro;
  row["steps"] = options.steps;
  row["step_s"] = seconds;
  row["step_s_min"] = *std::min_element(times.step.begin(), times.step.end());
  // Well below forward_backward_s: the host never waits for the device inside a step.
  row["enqueue_s"] = median(times.enqueue);
  row["forward_backward_s"] = median(times.backward);
  // Of it, what the reduction of gradients takes after the last pass.
  row["exposed_reduction_s"] = median(times.reduction);
  row["optimizer_s"] = median(times.optimizer);
  add_update(row, model, times);
  row["tokens_per_s"] = step_tokens / seconds;
  row["tflops"] = flops / seconds / 1e12;
  if (peak > 0) row["mfu"] = flops / seconds / peak;
  if (sustained > 0) {
    row["sustained_gemm_tflops"] = sustained / 1e12;
    row["of_sustained_gemm"] = flops / seconds / sustained;
  }
  if (const GraphedMicroBatch* graphed = model.model().graph()) {
    row["graph_nodes"] = graphed->graph()->num_nodes();
    row["graph_launches"] = graphed->num_launches();
  }
  if (const PartGraphs& parts = model.model().part_graphs(); parts.num_graphs() > 0) {
    row["graphs"] = parts.num_graphs();
    row["graph_nodes"] = parts.num_nodes();
    row["graph_launches"] = parts.num_launches();
  }
  row["peak_gib"] = gib(backend.device().memory().peak());
  row["loss"] = times.loss;
  if (options.kernels) watched.add_to(row);
  add_origin(row, backend.device().name(), options.command);
  if (options.json) {
    std::cout << row.dump() << std::endl;
    return ExitCode::Done;
  }
  for (const auto& [key, value] : row.items())
    if (key != "kernels") std::cout << fmt::format("{:<22} {}\n", key, value.dump());
  if (options.kernels) std::cout << kernel_table(row["kernels"]);
  std::cout << "\nmemory, bytes at each name's peak\n";
  for (const auto& usage : backend.device().memory().table())
    std::cout << fmt::format("{:<28} {:>16}\n", usage.name, usage.peak);
  std::cout << std::flush;
  return ExitCode::Done;
}

}  // namespace ferry
