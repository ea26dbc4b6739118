#include "app/console.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <iostream>

#include "app/gib.h"
#include "app/model/cost_model.h"
#include "app/rank_memory.h"
#include "app/version.h"

namespace ferry {
namespace {

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string flop_text(double flops) {
  return flops >= 1e9 ? fmt::format("{:.2f} GFLOP", flops / 1e9)
                      : fmt::format("{:.2f} MFLOP", flops / 1e6);
}

// Two significant digits, and every digit before the point.
std::string ratio_text(double ratio) {
  return ratio >= 10 ? fmt::format("{:.0f}", ratio) : fmt::format("{:.2g}", ratio);
}

std::string memory_line(const RunConfig& config, int64_t ranks, const Backend& backend) {
  MemoryEstimate estimate;  // of the stage that needs most
  for (const MemoryEstimate& stage : stage_memories(config, ranks))
    if (stage.total() > estimate.total()) estimate = stage;
  return fmt::format(
      "memory    per rank: parameters {:.2f} | gradients {:.2f} | optimizer {:.2f} | activations "
      "{:.2f} | logits {:.2f} | total {:.2f} of {:.1f} GiB\n",
      gib(estimate.weights), gib(estimate.gradients), gib(estimate.optimizer),
      gib(estimate.activations), gib(estimate.logits), gib(estimate.total()),
      gib(backend.device().total_bytes()));
}

}  // namespace

Console::Console(bool prints, const std::filesystem::path& run_dir) : prints_(prints) {
  if (!prints_) return;
  const std::filesystem::path path = run_dir / "log" / "run.log";
  file_.open(path, std::ios::app);
  check_file();
}

void Console::line(const std::string& text) {
  if (!prints_) return;
  std::cout << text << std::endl;
  file_ << text << std::endl;
  check_file();
}

void Console::check_file() const {
  if (!file_)
    fail(ExitCode::Storage, "error: cannot append to log/run.log of the run directory",
         "\n  why : no permission, or the disk is full\n  try : make room, then the same command");
}

void Console::step(const StepReport& r, int64_t total_steps, int num_ranks, int64_t device_bytes) {
  seconds_per_step_ =
      seconds_per_step_ == 0 ? r.seconds : 0.9 * seconds_per_step_ + 0.1 * r.seconds;
  std::string text =
      fmt::format("step {:>7}/{} {:5.1f}% | loss {:.4f}", grouped(r.step), grouped(total_steps),
                  100.0 * static_cast<double>(r.step) / static_cast<double>(total_steps), r.loss);
  if (r.aux_loss) text += fmt::format(" | aux {:.3f}", *r.aux_loss);
  if (r.z_loss) text += fmt::format("{} z {:.1e}", r.aux_loss ? "" : " |", *r.z_loss);
  text += fmt::format(" | gnorm {:.2f} | lr {:.2e} | {:.2f} s | {} tok/s{}", r.grad_norm, r.lr,
                      r.seconds, count_text(r.tokens / r.seconds / num_ranks),
                      num_ranks > 1 ? "/rank" : "");
  if (r.mfu > 0) text += fmt::format(" | {:.1f}% MFU", 100 * r.mfu);
  if (device_bytes > 0)
    text += fmt::format(" | mem {:.0f}/{:.0f}", gib(r.peak_bytes), gib(device_bytes));
  if (r.balance > 0) text += fmt::format(" | bal {:.2f} dead {}", r.balance, r.dead_experts);
  const double left = static_cast<double>(total_steps - r.step) * seconds_per_step_;
  text += fmt::format(" | data {:.1f}% | eta {}", 100 * r.data_seconds / r.seconds,
                      duration_text(left));
  line(text);
}

std::string banner(const RunConfig& config, const Mesh& mesh, const Backend& backend,
                   const std::string& host, const std::string& data, const std::string& resume) {
  const GptConfig gpt = config.gpt();
  const ParameterCount count = count_parameters(gpt);
  const FlopCount flops = flops_per_token(gpt);
  const int64_t global = config.global_batch(mesh.world());
  const double step_tokens = static_cast<double>(global * config.model.seq);
  const double total_tokens = step_tokens * static_cast<double>(config.run.steps);
  std::string text =
      fmt::format("ferry {} (git {})  {:%Y-%m-%d %H:%M:%SZ}   run: {}  -> {}\n", version_text(),
                  git_revision(), fmt::gmtime(std::time(nullptr)), config.run.name, config.run.dir);
  text += fmt::format("cluster   {} rank(s) from {} | {} | collectives: {}\n", mesh.world(), host,
                      backend.device().name(), backend.transport);
  const MeshSizes& s = mesh.sizes();
  text += fmt::format(
      "grid      world {} = attention TP{} CP{} DP{} PP{} | experts ETP{} EP{} EDP{} PP{}\n",
      mesh.world(), s.tensor, s.context, mesh.dp(), s.pipeline, s.expert_tensor, s.expert,
      mesh.edp(), s.pipeline);
  text += fmt::format("model     {} layers ({} MoE) H{} GQA {}/{}", config.model.layers,
                      num_moe_layers(gpt), config.model.hidden, config.model.heads,
                      config.model.kv_heads);
  if (config.moe.experts > 0)
    text += fmt::format(" | {} experts top-{}", config.moe.experts, config.moe.top_k);
  text += fmt::format(" | {} parameters, {} active | {}\n",
                      count_text(static_cast<double>(count.total())),
                      count_text(static_cast<double>(count.active())), config.model.precision);
  text += fmt::format(
      "tokens    {} / step (GBS {} x {}) | {} steps = {} tokens | {} tokens per active "
      "parameter\n",
      count_text(step_tokens), global, config.model.seq, grouped(config.run.steps),
      count_text(total_tokens), ratio_text(total_tokens / static_cast<double>(count.active())));
  const double peak = peak_flops(backend.device().name(), config.model.precision);
  text +=
      fmt::format("flops     {} / token ({} matmul + {} causal attention)",
                  flop_text(flops.total()), flop_text(flops.matmul), flop_text(flops.attention));
  if (peak > 0) text += fmt::format(" | peak used for MFU: {:.0f} TFLOP/s", peak / 1e12);
  text += "\n" + memory_line(config, mesh.world(), backend);
  text += "data      " + data + "\n";
  text += "resume    " + resume;
  if (!backend.notice.empty()) text += "\n! " + backend.notice;
  return text;
}

double peak_flops(const std::string& device_name, const std::string& precision) {
  const bool hopper = device_name.find("H200") != std::string::npos ||
                      device_name.find("H100") != std::string::npos;
  if (!hopper) return 0;
  // Dense rates of the SXM boards' data sheet.
  return precision == "bf16" ? 989e12 : 67e12;
}

std::string duration_text(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s >= 86400) return fmt::format("{}d {}h", s / 86400, s % 86400 / 3600);
  if (s >= 3600) return fmt::format("{}h {:02}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m {:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string count_text(double value) {
  if (value >= 999.5e9) return fmt::format("{:.2f} T", value / 1e12);
  if (value >= 999.5e6) return fmt::format("{:.2f} B", value / 1e9);
  if (value >= 999.5e3) return fmt::format("{:.2f} M", value / 1e6);
  if (value >= 999.5) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

}  // namespace ferry
