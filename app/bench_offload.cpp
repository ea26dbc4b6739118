#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "app/backend.h"
#include "app/bench.h"
#include "app/bench_steps.h"
#include "app/gemm_cache.h"
#include "app/gib.h"
#include "app/graph_plan.h"
#include "app/recompute_plan.h"
#include "core/median.h"

namespace ferry {
namespace {

struct Case {
  std::string text;
  RunConfig config;
};

struct Measured {
  double step_s = 0;
  int64_t between_steps = 0;  // bytes on the device before the first step that counts
  int64_t device_peak = 0;    // in the steps that count
  int64_t saved_peak = 0;     // of it, saved for backward
  int64_t pinned = 0;
  TrafficByModule traffic;
  std::string choice;  // of an automatic budget
  double loss = 0;
};

Measured measure(const Case& bench_case, const Backend& backend, TrainModel& model, Loader& loader,
                 int64_t& step, int64_t warmup, int64_t steps) {
  model.set_activation_memory(bench_case.config);
  measure_steps(bench_case.config, backend, model, loader, step, std::max<int64_t>(warmup, 1), 0);
  step += std::max<int64_t>(warmup, 1);
  MemoryLedger& memory = backend.device().memory();
  Measured measured;
  measured.between_steps = memory.current();
  memory.reset_peak();
  backend.device().pinned_memory().reset_peak();
  const StepTimes times = measure_steps(bench_case.config, backend, model, loader, step, 0, steps);
  step += steps;
  ActivationMemory& activations = model.activation_memory();
  measured.step_s = median(times.step);
  measured.device_peak = memory.peak();
  measured.saved_peak = activations.saved_bytes().peak();
  measured.pinned = backend.device().pinned_memory().peak();
  measured.traffic = activations.traffic();
  measured.choice = activations.auto_report();
  measured.loss = times.loss;
  return measured;
}

// The recomputation of modules from their input, and graphs of modules, are built into the model.
void check_same_model(const Case& bench_case, const RunConfig& config) {
  if (bench_case.config.layer_offload.weights)
    fail(ExitCode::Usage, "error: --case '", bench_case.text,
         "' moves weights\n  why : all cases train the same weights in turn\n  try : ferry bench "
         "step with layer_offload.weights=true");
  const GptRecompute own = gpt_recompute(bench_case.config.recompute);
  const GptRecompute built = gpt_recompute(config.recompute);
  if (own.modules != built.modules || own.layers != built.layers ||
      own.num_layers != built.num_layers)
    fail(ExitCode::Usage, "error: --case '", bench_case.text,
         "' recomputes other modules from their inputs than the configuration\n  why : all cases "
         "run on one model\n  try : give that recompute table to all cases, without --case");
  const std::set<Label> parts = graphed_parts(bench_case.config.cuda_graph);
  if (!parts.empty() && parts != graphed_parts(config.cuda_graph))
    fail(ExitCode::Usage, "error: --case '", bench_case.text,
         "' has graphs of other modules than the configuration\n  why : all cases run on one "
         "model\n  try : give cuda_graph.modules to all cases, without --case");
}

}  // namespace

ExitCode bench_offload(const RunConfig& config, const std::vector<std::string>& case_texts,
                       const std::vector<RunConfig>& case_configs, Runtime& runtime,
                       const OffloadBenchOptions& options) {
  std::vector<Case> cases{{"", config}};
  for (size_t i = 0; i < case_texts.size(); ++i) {
    cases.push_back({case_texts[i], case_configs[i]});
    check_same_model(cases.back(), config);
  }
  cases.push_back({"", config});  // the first one again: what the machine's clock did meanwhile

  const Backend backend = choose_backend(config, runtime);
  for (const Case& bench_case : cases) require_gpu_for_graphs(bench_case.config, backend);
  open_gemm_cache(config, /*may_record=*/true, backend.device(), runtime.control());
  const Mesh mesh(runtime.size(), mesh_sizes(config.parallel));
  const MeshGroups groups(mesh, *backend.world);
  const auto stream = backend.device().make_stream("compute");
  TrainModel model(config, *stream, groups, runtime.local_size());
  Loader loader =
      step_loader(config, groups, std::ssize(cases) * (options.warmup + options.steps + 1));
  const AutoOffload::Rates rates = measure_copy_rates(backend.device());

  std::vector<Measured> measured;
  int64_t step = 1;
  for (const Case& bench_case : cases)
    measured.push_back(
        measure(bench_case, backend, model, loader, step, options.warmup, options.steps));
  if (runtime.rank() != 0) return ExitCode::Done;

  // The baseline is the mean of the first and the last case.
  const double base_s = (measured.front().step_s + measured.back().step_s) / 2;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Measured& m = measured[i];
    double d2h = 0, h2d = 0, exposed = 0;
    nlohmann::ordered_json modules;
    for (const auto& [module, traffic] : m.traffic) {
      d2h += static_cast<double>(traffic.d2h_bytes);
      h2d += static_cast<double>(traffic.h2d_bytes);
      exposed += traffic.exposed_s;
      modules[module] = {{"d2h_bytes", traffic.d2h_bytes},
                         {"h2d_bytes", traffic.h2d_bytes},
                         {"exposed_s", traffic.exposed_s}};
    }
    const double link_s = d2h / rates.d2h_bytes_per_s + h2d / rates.h2d_bytes_per_s;
    nlohmann::ordered_json row = {{"bench", "offload"}, {"config", config.run.name}};
    row["case"] = cases[i].text;
    row["micro_batch"] = config.batch.micro;
    row["micro_batches"] = config.num_microbatches(runtime.size());
    row["step_s"] = m.step_s;
    row["step_over_without"] = m.step_s / base_s;
    row["link_s"] = link_s;
    row["overlap_efficiency"] = std::max(base_s, link_s) / m.step_s;
    const int64_t activation_peak = m.device_peak - measured[0].between_steps;
    row["activation_peak_bytes"] = activation_peak;
    row["activation_peak_over_without"] =
        static_cast<double>(activation_peak) /
        static_cast<double>(measured[0].device_peak - measured[0].between_steps);
    row["saved_peak_bytes"] = m.saved_peak;
    row["saved_peak_over_without"] =
        static_cast<double>(m.saved_peak) / static_cast<double>(measured[0].saved_peak);
    row["pinned_peak_bytes"] = m.pinned;
    row["d2h_bytes"] = d2h;
    row["h2d_bytes"] = h2d;
    row["exposed_s"] = exposed;
    row["d2h_gb_s"] = rates.d2h_bytes_per_s / 1e9;
    row["h2d_gb_s"] = rates.h2d_bytes_per_s / 1e9;
    if (!modules.is_null()) row["modules"] = modules;
    if (!m.choice.empty()) row["choice"] = m.choice;
    row["loss"] = m.loss;
    add_origin(row, backend.device().name(), options.command);
    if (options.json) {
      std::cout << row.dump() << std::endl;
      continue;
    }
    if (i == 0)
      std::cout << fmt::format(
          "copies {:.1f} GB/s to the host, {:.1f} GB/s back\n{:>8} {:>7} {:>8} {:>9} {:>9} {:>9}  "
          "case\n",
          rates.d2h_bytes_per_s / 1e9, rates.h2d_bytes_per_s / 1e9, "step s", "ratio", "overlap",
          "act. GiB", "saved GiB", "moved GiB");
    std::cout << fmt::format("{:8.4f} {:7.3f} {:8.3f} {:9.2f} {:9.2f} {:9.2f}  {}\n", m.step_s,
                             m.step_s / base_s, std::max(base_s, link_s) / m.step_s,
                             gib(activation_peak), gib(m.saved_peak), gib(d2h + h2d),
                             cases[i].text.empty() ? "nothing moves" : cases[i].text);
    if (!m.choice.empty()) std::cout << "         " << m.choice << "\n";
  }
  std::cout << std::flush;
  return ExitCode::Done;
}

}  // namespace ferry
