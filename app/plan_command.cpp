#include "app/plan_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "app/config_file.h"

namespace ferry {
namespace {

// Beyond it a schedule repeats itself.
constexpr int kShownActions = 24;

// The two grids over all ranks, each axis with its neighbours in it nearest first.
std::string grid_lines(const Plan& plan, const RunConfig& config, int64_t ranks) {
  const std::map<std::string, int64_t> sizes(plan.grid.begin(), plan.grid.end());
  const auto line = [&](const char* title, const std::vector<std::string>& axes) {
    std::string text = fmt::format("{:<12}{} rank{} =", title, ranks, ranks == 1 ? "" : "s");
    for (const std::string& axis : axes) {
      text += fmt::format(" {} {}", axis, sizes.at(axis));
      if (axis == "tensor" && config.parallel.sequence) text += " (sequence)";
    }
    return text + "\n";
  };
  std::string text = line("grid", {"tensor", "context", "data", "pipeline"});
  if (config.moe.experts > 0)
    text += line("  experts", {"expert_tensor", "expert", "expert_data", "pipeline"});
  return text;
}

std::string joined(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return text;
}

// What moe.gather comes to, if it is set.
std::string gather_text(const RunConfig& config) {
  if (!config.moe.gather) return "";
  return gathers_rows(config.moe, module_shares(config.parallel))
             ? ", tokens read in place"
             : ", tokens copied (moe.gather needs all experts on one rank)";
}

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  int64_t ranks = 0;
  double link_gb_s = MachineRates().link_bytes_per_s / 1e9;
  double tflops = MachineRates().compute_flop_per_s / 1e12;
  double device_gib = 0;
  bool json = false;
};

void run(const Options& options) {
  const RunConfig config = load_valid_config(options.config, options.overrides, options.ranks);
  const int64_t ranks = options.ranks > 0 ? options.ranks : config.fewest_ranks();
  const MachineRates rates{options.link_gb_s * 1e9, options.tflops * 1e12,
                           std::llround(options.device_gib * (1 << 30))};
  const Plan plan = make_plan(config, ranks, rates);
  std::cout << (options.json ? plan_json(plan, config, ranks) : plan_text(plan, config, ranks))
            << std::flush;
  std::cerr << host_warning(plan, config, available_host_memory()) << std::flush;
}

}  // namespace

std::string host_warning(const Plan& plan, const RunConfig& config, const HostMemory& host) {
  const MemoryEstimate& most = *std::max_element(
      plan.memory.begin(), plan.memory.end(),
      [](const MemoryEstimate& a, const MemoryEstimate& b) { return a.on_host() < b.on_host(); });
  const std::string problem = host_memory_problem(most, most.on_host(), 1, host, config);
  return problem.empty() ? "" : "warning: if it ran here: " + problem + "\n";
}

std::string plan_text(const RunConfig& config, int64_t ranks, const MachineRates& rates) {
  return plan_text(make_plan(config, ranks, rates), config, ranks);
}

std::string plan_text(const Plan& plan, const RunConfig& config, int64_t ranks) {
  const ModelConfig& model = config.model;
  const MoeConfig& moe = config.moe;
  const double step_flops = plan.flops.total() * static_cast<double>(plan.tokens_per_step);

  std::string text = fmt::format("run         {}\n", config.run.name);
  text += grid_lines(plan, config, ranks);
  text += fmt::format(
      "model       {} layers ({} MoE), hidden {}, heads {}/{} of {}, vocabulary {}, sequence {}, "
      "{}\n",
      model.layers, plan.moe_layers, model.hidden, model.heads, model.kv_heads, model.head_dim,
      model.vocab, model.seq, model.precision);
  if (moe.experts > 0) {
    text += fmt::format("experts     {} of width {}, top-{}, {} per rank", moe.experts, moe.ffn,
                        moe.top_k, plan.experts_per_rank);
    if (moe.shared_ffn > 0) text += fmt::format(", shared expert of width {}", moe.shared_ffn);
    text += gather_text(config) + "\n";
  }
  text += fmt::format("stages      {} | layers per stage: {}\n", layout_text(plan.stages),
                      joined(layers_per_stage(plan)));
  text += fmt::format(
      "tokens      {} per step (batch {} x {}), {} steps = {:.4g} tokens\n",
      with_commas(plan.tokens_per_step), config.global_batch(ranks), model.seq,
      with_commas(config.run.steps),
      static_cast<double>(plan.tokens_per_step) * static_cast<double>(config.run.steps));
  text += fmt::format(
      "flops       {:.4g} GFLOP per token ({:.4g} matmul + {:.4g} causal attention), {:.4g} TFLOP "
      "per step\n",
      plan.flops.total() / 1e9, plan.flops.matmul / 1e9, plan.flops.attention / 1e9,
      step_flops / 1e12);
  text += fmt::format("schedule    {} micro-batch{} of {}\n", plan.num_microbatches,
                      plan.num_microbatches == 1 ? "" : "es", config.batch.micro);
  text += offload_line(plan, config) + "\nparameters\n";
  for (const auto& [name, count] : rows(plan.parameters)) {
    if (count > 0) text += fmt::format("  {:<16}{:>18}\n", name, with_commas(count));
  }
  text += saved_tables(plan) + memory_tables(plan) + optimizer_table(plan, config);
  text += offload_tables(plan, config);
  text += megatron_table(plan, config);
  text += "\nschedule\n" + schedule_text(plan.shape, plan.schedules, kShownActions);
  text += simulation_text(plan.simulation);
  return text;
}

void add_plan_command(CLI::App& root) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand(
      "plan",
      "Prints grid, parameters, FLOPs and memory of a configuration; needs no GPU and no MPI");
  command->add_option("CONFIG", options->config, "Configuration file")->required();
  command->add_option("OVERRIDES", options->overrides, "table.key=value ...");
  command->add_option("--ranks", options->ranks, "Ranks of the run (default: the fewest that fit)")
      ->check(CLI::Range(int64_t{1}, int64_t{100000}));
  command
      ->add_option("--link-gb-s", options->link_gb_s,
                   "Copies between device and host, GB/s each way, for predictions")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--tflops", options->tflops, "Rate of the compute, for predictions")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--device-gib", options->device_gib,
                   "Memory of a device, GiB, to choose optimizer.offload.fraction = auto")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", options->json, "One JSON object, for programs");
  command->footer("Example: ferry plan configs/olmoe_1b_7b.toml batch.micro=1 --json");
  command->callback([options] { run(*options); });
}

}  // namespace ferry
