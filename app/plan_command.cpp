#include "app/plan_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "app/config_file.h"
#include "app/model/cost_model.h"
#include "app/model_layout.h"
#include "app/rank_memory.h"
#include "pipeline/simulate.h"

namespace ferry {

namespace {

// Every number that the two forms of a plan show.
struct Plan {
  std::vector<std::pair<std::string, int64_t>> grid;
  std::vector<StageLayers> stages;
  int64_t moe_layers = 0;
  int64_t experts_per_rank = 0;
  ParameterCount parameters;
  FlopCount flops;
  int64_t tokens_per_step = 0;
  int64_t num_microbatches = 0;
  std::vector<ActivationCost> dense_layer;
  std::vector<ActivationCost> moe_layer;
  std::vector<MemoryEstimate> memory;  // of a rank of each pipeline rank
  ScheduleShape shape;
  std::vector<std::vector<Action>> schedules;
  Simulation simulation;
};

Plan make_plan(const RunConfig& config, int64_t ranks) {
  const GptConfig gpt = config.gpt();
  const ParallelTable& grid = config.parallel;
  Plan plan;
  plan.grid = {{"data", config.data_parallel(ranks)},
               {"tensor", grid.tensor},
               {"context", grid.context},
               {"pipeline", grid.pipeline},
               {"expert", grid.expert},
               {"expert_tensor", grid.expert_tensor},
               {"expert_data", ranks / (grid.expert * grid.expert_tensor * grid.pipeline)}};
  plan.stages = model_stages(config);
  plan.moe_layers = num_moe_layers(gpt);
  plan.experts_per_rank = gpt.moe.experts / grid.expert;
  plan.parameters = count_parameters(gpt);
  plan.flops = flops_per_token(gpt);
  plan.tokens_per_step = config.global_batch(ranks) * gpt.model.seq;
  plan.num_microbatches = config.num_microbatches(ranks);
  const ModuleShares shares{grid.tensor, grid.sequence, grid.expert_tensor};
  if (plan.moe_layers < gpt.model.layers) plan.dense_layer = activation_costs(gpt, false, shares);
  if (plan.moe_layers > 0) plan.moe_layer = activation_costs(gpt, true, shares);
  plan.memory = stage_memories(config, ranks);
  plan.shape = training_schedule(config, ranks);
  plan.schedules = make_schedules(plan.shape);
  plan.simulation = simulate(plan.shape, plan.schedules);
  return plan;
}

std::vector<std::pair<std::string, int64_t>> rows(const ParameterCount& count) {
  return {{"embedding", count.embedding},
          {"attention", count.attention},
          {"dense_mlp", count.dense_mlp},
          {"experts", count.experts},
          {"shared_experts", count.shared_experts},
          {"router", count.router},
          {"norms", count.norms},
          {"head", count.head},
          {"total", count.total()},
          {"active", count.active()}};
}

std::vector<std::pair<std::string, int64_t>> rows(const MemoryEstimate& bytes) {
  return {{"weights", bytes.weights},     {"gradients", bytes.gradients},
          {"optimizer", bytes.optimizer}, {"activations", bytes.activations},
          {"logits", bytes.logits},       {"workspace", bytes.workspace},
          {"total", bytes.total()}};
}

// Beyond it a schedule repeats itself.
constexpr int kShownActions = 24;
// A row of numbers for more stages does not fit into a line.
constexpr size_t kShownStages = 8;

std::vector<int64_t> layers_per_stage(const Plan& plan) {
  std::vector<int64_t> layers;
  for (const StageLayers& stage : plan.stages) layers.push_back(stage.num_layers);
  return layers;
}

// The stages that the table of memory shows: all, or of many the one that needs most.
std::vector<size_t> shown_stages(const Plan& plan) {
  std::vector<size_t> all(plan.memory.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (all.size() <= kShownStages) return all;
  return {*std::max_element(all.begin(), all.end(), [&](size_t a, size_t b) {
    return plan.memory[a].total() < plan.memory[b].total();
  })};
}

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

std::string memory_table(const Plan& plan) {
  const std::vector<size_t> stages = shown_stages(plan);
  std::string text = "\nmemory of a rank, GiB\n";
  if (plan.memory.size() > 1) {
    text += fmt::format("  {:<16}", "pipeline rank");
    for (const size_t stage : stages) text += fmt::format("{:>14}", stage);
    text += '\n';
  }
  for (size_t row = 0; row < rows(plan.memory[0]).size(); ++row) {
    text += fmt::format("  {:<16}", rows(plan.memory[0])[row].first);
    for (const size_t stage : stages)
      text += fmt::format("{:>14.3f}",
                          static_cast<double>(rows(plan.memory[stage])[row].second) / (1 << 30));
    text += '\n';
  }
  return text;
}

std::string with_commas(int64_t value) {
  std::string text = std::to_string(value);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string joined(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return text;
}

std::string activation_table(const char* title, const std::vector<ActivationCost>& costs) {
  if (costs.empty()) return "";
  int64_t total = 0;
  std::string text;
  for (const ActivationCost& cost : costs) {
    total += cost.bytes_per_token;
    text += fmt::format("  {:<16}{:>14}  {}\n", cost.module, with_commas(cost.bytes_per_token),
                        cost.name);
  }
  return fmt::format("\n{}, bytes per token\n{}  {:<16}{:>14}\n", title, text, "total",
                     with_commas(total));
}

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  int64_t ranks = 0;
  bool json = false;
};

void run(const Options& options) {
  const RunConfig config = load_valid_config(options.config, options.overrides, options.ranks);
  const int64_t ranks = options.ranks > 0 ? options.ranks : config.fewest_ranks();
  std::cout << (options.json ? plan_json(config, ranks) : plan_text(config, ranks)) << std::flush;
}

}  // namespace

std::string plan_text(const RunConfig& config, int64_t ranks) {
  const Plan plan = make_plan(config, ranks);
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
    text +=
        moe.shared_ffn > 0 ? fmt::format(", shared expert of width {}\n", moe.shared_ffn) : "\n";
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
  text += "offload     nothing\n\nparameters\n";
  for (const auto& [name, count] : rows(plan.parameters)) {
    if (count > 0) text += fmt::format("  {:<16}{:>18}\n", name, with_commas(count));
  }
  text += activation_table("saved by a dense layer", plan.dense_layer);
  text += activation_table("saved by a MoE layer (balanced routing)", plan.moe_layer);
  text += memory_table(plan);
  text += "\nschedule\n" + schedule_text(plan.shape, plan.schedules, kShownActions);
  text += simulation_text(plan.simulation);
  return text;
}

std::string plan_json(const RunConfig& config, int64_t ranks) {
  using nlohmann::ordered_json;
  const Plan plan = make_plan(config, ranks);
  const auto object = [](const auto& pairs) {
    ordered_json json = ordered_json::object();
    for (const auto& [name, value] : pairs) json[name] = value;
    return json;
  };
  const auto saved = [](const std::vector<ActivationCost>& costs) {
    ordered_json json = ordered_json::object();
    for (const ActivationCost& cost : costs) {
      const std::string module(cost.module);
      json[module] = json.value(module, int64_t{0}) + cost.bytes_per_token;
    }
    return json;
  };
  ordered_json json;
  json["run"] = config.run.name;
  json["ranks"] = ranks;
  json["grid"] = object(plan.grid);
  json["layers"] = config.model.layers;
  json["moe_layers"] = plan.moe_layers;
  json["layout"] = layout_text(plan.stages);
  json["layers_per_stage"] = layers_per_stage(plan);
  if (plan.moe_layers > 0) json["experts_per_rank"] = plan.experts_per_rank;
  json["parameters"] = object(rows(plan.parameters));
  json["flops_per_token"] = {{"total", plan.flops.total()},
                             {"matmul", plan.flops.matmul},
                             {"attention", plan.flops.attention}};
  json["tokens_per_step"] = plan.tokens_per_step;
  json["flops_per_step"] = plan.flops.total() * static_cast<double>(plan.tokens_per_step);
  json["microbatches"] = plan.num_microbatches;
  json["bubble"] = plan.simulation.bubble;
  json["schedule"] = ordered_json::array();
  for (size_t pp = 0; pp < plan.schedules.size(); ++pp) {
    std::string line;
    for (const Action& action : plan.schedules[pp])
      line += (line.empty() ? "" : " ") + action_text(action, plan.shape.num_chunks);
    json["schedule"].push_back({{"rank", pp},
                                {"peak_in_flight", plan.simulation.ranks[pp].peak_in_flight},
                                {"actions", line}});
  }
  if (!plan.dense_layer.empty())
    json["saved_bytes_per_token_of_dense_layer"] = saved(plan.dense_layer);
  if (!plan.moe_layer.empty()) json["saved_bytes_per_token_of_moe_layer"] = saved(plan.moe_layer);
  json["memory_bytes_per_rank"] = ordered_json::array();
  for (const MemoryEstimate& memory : plan.memory)
    json["memory_bytes_per_rank"].push_back(object(rows(memory)));
  return json.dump(2) + "\n";
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
  command->add_flag("--json", options->json, "One JSON object, for programs");
  command->footer("Example: ferry plan configs/olmoe_1b_7b.toml batch.micro=1 --json");
  command->callback([options] { run(*options); });
}

}  // namespace ferry
