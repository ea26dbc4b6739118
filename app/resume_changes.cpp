#include "app/resume_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "app/config_file.h"
#include "app/toml_file.h"
#include "core/check.h"

namespace ferry {
namespace {

using enum ChangeClass;

// Keys, and tables for all keys in them that are not named. A table of a kind in which a new key
// could be of another class is not listed, so that somebody has to decide.
constexpr std::array kClasses = std::to_array<std::pair<std::string_view, ChangeClass>>({
    {"run.name", Free},
    {"run.dir", Free},
    {"run.steps", Data},
    {"run.stop_at_step", Free},
    {"run.seed", Numbers},
    {"run.backend", Layout},
    {"run.deterministic", Layout},
    {"run.gemm_cache", Layout},
    {"run.log_every", Free},
    {"run.eval_every", Free},
    {"run.eval_batches", Layout},
    {"run.time_limit_minutes", Free},
    {"run.fresh", Free},
    {"model", Numbers},
    {"model.init_std", Free},
    {"moe", Numbers},
    {"moe.shared_overlap", Free},
    {"moe.dispatcher", Layout},
    {"moe.rank_capacity_factor", Layout},
    {"moe.fused_experts", Layout},
    {"moe.gather", Layout},
    {"parallel", Layout},
    {"parallel.share_gpu", Free},
    {"batch", Numbers},
    {"optimizer", Numbers},
    {"optimizer.distributed", Layout},
    {"optimizer.precision_aware", Layout},
    {"optimizer.overlap_grad_reduce", Free},
    {"optimizer.overlap_param_gather", Free},
    {"optimizer.offload", Free},
    {"activation_offload", Free},
    {"recompute", Free},
    {"layer_offload", Free},
    {"paged_stash", Free},
    {"cuda_graph", Free},
    {"checkpoint", Free},
    {"data.kind", Data},
    {"data.train", Data},
    {"data.valid", Layout},
    {"data.split", Data},
    {"data.tokenizer", Data},
    {"data.document_mask", Numbers},
    {"debug.force_routing", Numbers},
    {"debug.poison_memory", Free},
    {"debug.delay_copies_us", Free},
    {"debug.delay_compute_us", Free},
    {"debug.nonfinite_at_step", Free},
    {"debug.dump_routing", Free},
    {"debug.dump_token_loss", Free},
    {"debug.slow_writer_mb_s", Free},
    {"debug.save_step_0", Free},
    {"debug.log_samples", Free},
    {"debug.throw_at", Free},
});

bool is_in(std::string_view key, std::string_view key_or_table) {
  return key.starts_with(key_or_table) &&
         (key.size() == key_or_table.size() || key[key_or_table.size()] == '.');
}

constexpr std::string_view kGlobalBatch = "batch.global";

// Values by key, as texts.
std::map<std::string, std::string> values_of(const RunConfig& config) {
  std::map<std::string, std::string> values;
  visit_values(config, [&](const std::string& key, const Field& field, const auto& value) {
    const std::string text = to_toml(field, value);
    values[key] = text.empty() ? "not set" : text;
  });
  // A rate that never falls has no end of its fall.
  if (config.optimizer.schedule == "constant") values["optimizer.decay_steps"] = "not used";
  return values;
}

// A configuration may leave the samples of a step to the number of ranks.
std::string global_batch(const CheckpointSettings& checkpoint, const RunConfig& before) {
  if (before.batch.global != 0) return to_toml(before.batch.global);
  if (checkpoint.step == 0 || checkpoint.samples % checkpoint.step != 0) return to_toml(int64_t{0});
  return to_toml(checkpoint.samples / checkpoint.step);
}

ConfigReading read_settings(const CheckpointSettings& checkpoint) {
  try {
    return read_config(TomlFile(checkpoint.config).path(), {});
  } catch (const Error& error) {
    if (error.code() != ExitCode::Usage) throw;
    fail(ExitCode::Storage, "error: the configuration in ", checkpoint.name,
         " cannot be read\n  why : ", error.what(),
         "\n  try : checkpoint.weights_only=true takes the weights alone");
  }
}

// What this version cannot read of a configuration that another one wrote.
std::vector<ConfigChange> unreadable(const std::vector<ConfigError>& errors) {
  std::vector<ConfigChange> changes;
  for (const ConfigError& error : errors) {
    if (error.what == "missing key" || error.keys.empty()) continue;  // its default counts
    const std::string& text = error.places.front().text;
    const size_t equals = text.find(" = ");
    changes.push_back({error.keys.front(),
                       equals == std::string::npos ? text : text.substr(equals + 3),
                       error.what + " here", error.what != "unknown key"});
  }
  return changes;
}

std::string table_of(std::span<const ConfigChange> changes, std::string_view margin,
                     std::span<const std::string> allowed) {
  size_t key_width = 3, before_width = 10;
  for (const ConfigChange& change : changes) {
    key_width = std::max(key_width, change.key.size());
    before_width = std::max(before_width, change.before.size());
  }
  std::string text;
  const auto add = [&](const std::string& key, const std::string& before, const std::string& now) {
    text += fmt::format("\n{}{:{}}  {:{}}  {}", margin, key, key_width, before, before_width, now);
  };
  add("key", "checkpoint", "now");
  for (const ConfigChange& change : changes) {
    const bool is_allowed = change.needs_permission && is_allowed_change(change.key, allowed);
    add(change.key, change.before, change.now + (is_allowed ? "  (allowed)" : ""));
  }
  return text;
}

}  // namespace

std::optional<ChangeClass> change_class(const std::string& key) {
  std::optional<ChangeClass> found;
  size_t longest = 0;
  for (const auto& [key_or_table, its_class] : kClasses) {
    if (!is_in(key, key_or_table) || key_or_table.size() < longest) continue;
    longest = key_or_table.size();
    found = its_class;
  }
  return found;
}

std::vector<ConfigChange> changes_on_resume(const CheckpointSettings& checkpoint,
                                            const RunConfig& now, int64_t ranks, bool same_data) {
  const ConfigReading reading = read_settings(checkpoint);
  std::map<std::string, std::string> before = values_of(reading.config), after = values_of(now);
  before[std::string(kGlobalBatch)] = global_batch(checkpoint, reading.config);
  after[std::string(kGlobalBatch)] = to_toml(now.global_batch(ranks));

  std::vector<ConfigChange> changes = unreadable(reading.errors);
  const size_t num_unreadable = changes.size();
  visit_values(now, [&](const std::string& key, const Field&, const auto&) {
    const ChangeClass its_class = change_class(key).value_or(Numbers);
    if (its_class == Free || before[key] == after[key]) return;
    for (size_t i = 0; i < num_unreadable; ++i)
      if (changes[i].key == key) return;
    changes.push_back(
        {key, before[key], after[key], its_class == Numbers || (its_class == Data && !same_data)});
  });
  return changes;
}

bool is_allowed_change(const std::string& key, std::span<const std::string> allowed) {
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const std::string& name) { return name == "all" || is_in(key, name); });
}

std::string describe_changes(const CheckpointSettings& checkpoint,
                             std::span<const ConfigChange> changes,
                             std::span<const std::string> allowed) {
  if (changes.empty()) return "";
  std::vector<ConfigChange> refused;
  for (const ConfigChange& change : changes)
    if (change.needs_permission && !is_allowed_change(change.key, allowed))
      refused.push_back(change);
  if (refused.empty())
    return "\n! settings that are not those of the checkpoint:" +
           table_of(changes, "!   ", allowed);
  std::string keys;
  for (const ConfigChange& change : refused) keys += (keys.empty() ? "" : ",") + change.key;
  fail(ExitCode::Usage, "error: ", checkpoint.name, " was trained with other settings",
       table_of(refused, "  --> ", allowed),
       "\n  why : going on with these gives other numbers than the run that was begun\n"
       "  try : the settings of the checkpoint (ferry ckpt show), or, if the change is meant, "
       "checkpoint.allow_changes=[",
       keys, "]");
}

bool changes_samples(std::span<const ConfigChange> changes) {
  return std::any_of(changes.begin(), changes.end(), [](const ConfigChange& change) {
    return change_class(change.key) == Data || change.key == kGlobalBatch ||
           change.key == "run.seed" || change.key == "model.seq" || change.key == "model.vocab";
  });
}

}  // namespace ferry
