#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/backend.h"
#include "app/bench.h"
#include "app/bench_steps.h"
#include "app/console.h"
#include "app/data_spec.h"
#include "app/model/cost_model.h"
#include "app/version.h"

namespace ferry {
ExitCode bench_step(const RunConfig& config, Runtime& runtime, int64_t warmup, int64_t steps,
                    bool json, const std::string& command) {
  const Backend backend = choose_backend(config.run.backend, config.model.precision, runtime,
                                         config.parallel.share_gpu);
  const Mesh mesh(runtime.size(), mesh_sizes(config.parallel));
  const MeshGroups groups(mesh, *backend.world);
  const auto stream = backend.device().make_stream("compute");
  TrainModel model(config, *stream, groups);
  RunConfig needed = config;
  needed.run.steps = warmup + steps;
  Loader loader(open_dataset(training_data_spec(needed, runtime.size())),
                loader_config(config, groups));

  const double step_tokens =
      static_cast<double>(config.global_batch(runtime.size()) * config.model.seq);
  const StepTimes times = measure_steps(config, backend, model, loader, 1, warmup, steps);
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
  row["tokens_per_s"] = step_tokens / seconds;
  row["tflops"] = flops / seconds / 1e12;
  if (peak > 0) row["mfu"] = flops / seconds / peak;
  row["peak_gib"] = static_cast<double>(backend.device().memory().peak()) / (1 << 30);
  row["loss"] = times.loss;
  row["machine"] = backend.device().name();
  row["commit"] = git_revision();
  row["date"] = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  row["command"] = command;
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
