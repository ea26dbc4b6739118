#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/backend.h"
#include "app/batch_feed.h"
#include "app/bench.h"
#include "app/console.h"
#include "app/data_spec.h"
#include "app/host_sum.h"
#include "app/model/cost_model.h"
#include "app/train_model.h"
#include "app/version.h"
#include "core/host_copy.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

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
  BatchFeed feed(*stream, loader);

  const double step_tokens =
      static_cast<double>(config.global_batch(runtime.size()) * config.model.seq);
  std::vector<double> step_seconds, enqueue_seconds, backward_seconds, reduction_seconds,
      optimizer_seconds;
  double loss = 0;
  for (int64_t step = 1; step <= warmup + steps; ++step) {
    const auto start = Clock::now();
    const int64_t first_sample = loader.consumed_samples();
    model.begin_step();
    model.forward_backward(feed, first_sample, step);
    const Event passes_done = stream->record();
    model.finish_backward();
    const auto enqueued = Clock::now();
    passes_done.wait_host();
    const auto passed = Clock::now();
    stream->synchronize();
    const auto middle = Clock::now();
    const double norm = model.gradient_norm(step_tokens);
    std::vector<double> sums{read_total(*stream, model.totals(), "loss")};
    sum_over_ranks(sums, *backend.world, *stream);
    loss = sums[0] / step_tokens;
    if (!std::isfinite(norm) || !std::isfinite(loss))
      fail(ExitCode::Numerical, "bench step: loss ", loss, ", gradient norm ", norm);
    model.update(step, step_tokens, norm);
    stream->synchronize();
    if (step <= warmup) continue;
    const auto end = Clock::now();
    step_seconds.push_back(std::chrono::duration<double>(end - start).count());
    backward_seconds.push_back(std::chrono::duration<double>(middle - start).count());
    enqueue_seconds.push_back(std::chrono::duration<double>(enqueued - start).count());
    reduction_seconds.push_back(std::chrono::duration<double>(middle - passed).count());
    optimizer_seconds.push_back(std::chrono::duration<double>(end - middle).count());
  }
  if (runtime.rank() != 0) return ExitCode::Done;

  const double seconds = median(step_seconds);
  const double flops = flops_per_token(config.gpt()).total() * step_tokens / runtime.size();
  const double peak = peak_flops(backend.device().name(), config.model.precision);
  nlohmann::ordered_json row = {{"bench", "step"}, {"config", config.run.name}};
  row["ranks"] = runtime.size();
  row["layout"] = grid_text(config, mesh);
  row["tokens_per_step"] = step_tokens;
  row["micro_batch"] = config.batch.micro;
  row["steps"] = steps;
  row["step_s"] = seconds;
  row["step_s_min"] = *std::min_element(step_seconds.begin(), step_seconds.end());
  // Well below forward_backward_s: the host never waits for the device inside a step.
  row["enqueue_s"] = median(enqueue_seconds);
  row["forward_backward_s"] = median(backward_seconds);
  // Of it, what the reduction of gradients takes after the last pass.
  row["exposed_reduction_s"] = median(reduction_seconds);
  row["optimizer_s"] = median(optimizer_seconds);
  row["tokens_per_s"] = step_tokens / seconds;
  row["tflops"] = flops / seconds / 1e12;
  if (peak > 0) row["mfu"] = flops / seconds / peak;
  row["peak_gib"] = static_cast<double>(backend.device().memory().peak()) / (1 << 30);
  row["loss"] = loss;
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
