#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/bench.h"
#include "core/median.h"
#include "core/seconds_since.h"
#include "core/stream_cpu.h"
#include "pipeline/executor.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

// Passes that take a given time of one core and send small messages.
class BusyWork final : public StageWork {
 public:
  BusyWork(Stream& stream, std::chrono::microseconds forward, const MessageType& message)
      : stream_(stream), forward_(forward), message_(message) {}

  Tensor forward(int, int, const Tensor&) override { return work(forward_); }
  Tensor backward(int, int, const Tensor&) override { return work(2 * forward_); }

 private:
  Tensor work(std::chrono::microseconds duration) {
    const Tensor y = Tensor::empty(stream_, "bench", message_.shape, message_.dtype);
    enqueue_cpu(stream_, [y, duration] {
      const auto end = Clock::now() + duration;
      while (Clock::now() < end) {
      }
      std::fill_n(y.data<float>(), y.numel(), 1.0f);
    });
    return y;
  }

  Stream& stream_;
  std::chrono::microseconds forward_;
  MessageType message_;
};

double run_steps(Executor& executor, const RankSchedule& schedule, const MessageType& message,
                 BusyWork& work, Stream& stream, Control& control, int64_t steps) {
  std::vector<double> seconds;
  for (int64_t step = 0; step < steps + 2; ++step) {
    control.barrier("bench pipeline");
    const auto start = Clock::now();
    executor.run(schedule, message, work);
    stream.synchronize();
    control.barrier("bench pipeline");  // the step ends with its last rank
    if (step >= 2) seconds.push_back(seconds_since(start));
  }
  return median(std::move(seconds));
}

}  // namespace

ExitCode bench_pipeline(Runtime& runtime, int64_t forward_us, int64_t steps, bool json,
                        const std::string& command) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("compute");
  const std::unique_ptr<Group> world = runtime.world_group();
  const int p = runtime.size();
  const MessageType message{{64, 64}, DType::F32};
  if (runtime.rank() == 0 && !json)
    std::cout << fmt::format("{:<12} {:>6} {:>6} {:>14} {:>10} {:>10} {:>10}\n", "schedule", "m",
                             "v", "forward us", "step ms", "bubble", "formula");
  for (const int v : {1, 2, 4}) {
    PipelineLinks links(*world, *device, v);
    Executor executor(links, *stream);
    for (const int m : {p, 2 * p, 4 * p}) {
      // The same work for every v: chunks are v times shorter.
      const std::chrono::microseconds pass(std::max<int64_t>(1, forward_us / v));
      const ScheduleShape shape{usual_schedule(v), p, v, m, 0};
      BusyWork work(*stream, pass, message);
      const double seconds = run_steps(executor, proved_schedule(shape, runtime.rank()), message,
                                       work, *stream, runtime.control(), steps);
      if (runtime.rank() != 0) continue;
      const double busy = 3e-6 * static_cast<double>(pass.count()) * m * v;
      const double bubble = (seconds - busy) / busy;
      const double formula = static_cast<double>(p - 1) / (static_cast<double>(m) * v);
      const char* kind = v > 1 ? "interleaved" : "1f1b";
      if (!json) {
        std::cout << fmt::format("{:<12} {:>6} {:>6} {:>14} {:>10.2f} {:>10.4f} {:>10.4f}\n", kind,
                                 m, v, pass.count(), 1e3 * seconds, bubble, formula);
        continue;
      }
      nlohmann::ordered_json row = {{"bench", "pipeline"}, {"config", kind}};
      row["ranks"] = p;
      row["microbatches"] = m;
      row["chunks"] = v;
      row["forward_us"] = pass.count();
      row["step_s"] = seconds;
      row["bubble"] = bubble;
      row["formula"] = formula;
      add_origin(row, device->name(), command);
      std::cout << row.dump() << "\n";
    }
  }
  std::cout << std::flush;
  return ExitCode::Done;
}

}  // namespace ferry
