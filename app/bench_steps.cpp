#include "app/bench_steps.h"

#include <chrono>
#include <cmath>

#include "app/batch_feed.h"
#include "app/data_spec.h"
#include "app/host_sum.h"

namespace ferry {

Loader step_loader(const RunConfig& config, const MeshGroups& groups, int64_t num_steps) {
  RunConfig needed = config;
  needed.run.steps = num_steps;
  return Loader(open_dataset(training_data_spec(needed, groups.mesh().world())),
                loader_config(config, groups));
}

StepTimes measure_steps(const RunConfig& config, const Backend& backend, TrainModel& model,
                        Loader& loader, int64_t first_step, int64_t warmup, int64_t steps,
                        const AfterStep& after_step) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  Stream& stream = model.model().stream();
  BatchFeed feed(stream, loader);
  const double step_tokens =
      static_cast<double>(config.global_batch(backend.world->size()) * config.model.seq);
  StepTimes times;
  for (int64_t i = 0; i < warmup + steps; ++i) {
    const int64_t step = first_step + i;
    const auto start = Clock::now();
    const int64_t first_sample = loader.consumed_samples();
    model.begin_step();
    model.forward_backward(feed, first_sample, step);
    const Event passes_done = stream.record();
    model.finish_backward();
    if (model.has_limits() && model.exceeded().worthless())
      fail(ExitCode::Usage, "bench: step ", step,
           " exceeded moe.rank_capacity_factor or the pages of [paged_stash]; raise them");
    const auto enqueued = Clock::now();
    passes_done.wait_host();
    const auto passed = Clock::now();
    stream.synchronize();
    const auto middle = Clock::now();
    const double norm = model.gradient_norm(step_tokens);
    std::vector<double> sums{read_total(stream, model.totals(), "loss")};
    sum_over_ranks(sums, *backend.world, stream);
    times.loss = sums[0] / step_tokens;
    if (!std::isfinite(norm) || !std::isfinite(times.loss))
      fail(ExitCode::Numerical, "bench: loss ", times.loss, ", gradient norm ", norm, " at step ",
           step);
    model.update(step, step_tokens, norm);
    stream.synchronize();
    const auto end = Clock::now();
    if (after_step) after_step(seconds(start, end), seconds(middle, end));
    if (i < warmup) continue;
    if (model.hybrid_optimizer() != nullptr)
      times.updates.push_back(model.hybrid_optimizer()->times());
    times.step.push_back(seconds(start, end));
    times.enqueue.push_back(seconds(start, enqueued));
    times.backward.push_back(seconds(start, middle));
    times.reduction.push_back(seconds(passed, middle));
    times.optimizer.push_back(seconds(middle, end));
  }
  return times;
}

}  // namespace ferry
