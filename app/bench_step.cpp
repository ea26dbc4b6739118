#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/backend.h"
#include "app/bench.h"
#include "app/bench_steps.h"
#include "app/console.h"
#include "app/data_spec.h"
#include "app/host_memory.h"
#include "app/model/cost_model.h"
#include "app/optimizer_offload.h"
#include "app/rank_memory.h"

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
  row["device_state_gib"] = static_cast<double>(on_device) / (1 << 30);
  row["host_state_gib"] = static_cast<double>(hybrid->host_memory().current()) / (1 << 30);
}

}  // namespace

ExitCode bench_step(const RunConfig& config, Runtime& runtime, int64_t warmup, int64_t steps,
                    bool json, const std::string& command) {
  const Backend backend = choose_backend(config.run.backend, config.model.precision, runtime,
                                         config.parallel.share_gpu);
  const Mesh mesh(runtime.size(), mesh_sizes(config.parallel));
  const MeshGroups groups(mesh, *backend.world);
  RunConfig unsaved = config;
  unsaved.checkpoint.every = 0;
  require_host_memory(stage_memory(unsaved, runtime.size(), mesh.at(runtime.rank()).pp), unsaved,
                      runtime.host_name(), runtime.control());
  const auto stream = backend.device().make_stream("compute");
  TrainModel model(config, *stream, groups, runtime.local_size());
  RunConfig needed = config;
  needed.run.steps = warmup + steps;
  Loader loader(open_dataset(training_data_spec(needed, runtime.size())),
                loader_config(config, groups));

  const double step_tokens =
      static_cast<double>(config.global_batch(runtime.size()) * config.model.seq);
  OptimizerOffload optimizer_offload(config, model, runtime, *backend.world);
  const auto say = [&](const std::vector<std::string>& lines) {
    if (runtime.rank() != 0) return;
    for (const std::string& line : lines) std::cerr << line << std::endl;
  };
  say(optimizer_offload.begin());
  const StepTimes times = measure_steps(config, backend, model, loader, 1, warmup, steps,
                                        [&](double seconds, double optimizer_seconds) {
                                          StepReport report;
                                          report.seconds = seconds;
                                          report.optimizer_seconds = optimizer_seconds;
                                          say(optimizer_offload.after_step(report));
                                        });
  if (runtime.rank() != 0) return ExitCode::Done;

  const double seconds = median(times.step);
  const double flops = flops_per_token(config.gpt()).total() * step_tokens / runtime.size();
  const double peak = peak_flops(backend.device().name(), config.model.precision);
  nlohmann::ordered_json row = {{"bench", "step"}, {"config", config.run.name}};
  row["ranks"] = runtime.size();
  row["layout"] = grid_text(config, mesh);
  row["tokens_per_step"] = step_tokens;
  row["micro_batch"] = config.batch.micro;
  row["steps"] = steps;
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
  row["peak_gib"] = static_cast<double>(backend.device().memory().peak()) / (1 << 30);
  row["loss"] = times.loss;
  add_origin(row, backend.device().name(), command);
  if (json) {
    std::cout << row.dump() << std::endl;
    return ExitCode::Done;
  }
  for (const auto& [key, value] : row.items())
    std::cout << fmt::format("{:<20} {}\n", key, value.dump());
  std::cout << "\nmemory, bytes at each name's peak\n";
  for (const auto& usage : backend.device().memory().table())
    std::cout << fmt::format("{:<28} {:>16}\n", usage.name, usage.peak);
  std::cout << std::flush;
  return ExitCode::Done;
}

}  // namespace ferry
