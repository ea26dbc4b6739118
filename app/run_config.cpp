#include "app/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "pipeline/stage_layout.h"

namespace ferry {

std::string Origin::text() const {
  switch (kind) {
    case Kind::Default:
      return "default";
    case Kind::Derived:
      return "derived";
    case Kind::File:
      return line > 0 ? fmt::format("{}:{}:{}", file, line, column) : file;
    case Kind::CommandLine:
      return "command line";
  }
  return "?";
}

Origin RunConfig::origin(const std::string& path) const {
  const auto found = origins.find(path);
  return found == origins.end() ? Origin{} : found->second;
}

int64_t RunConfig::fewest_ranks() const {
  return std::lcm(parallel.tensor * parallel.context, parallel.expert_tensor * parallel.expert) *
         parallel.pipeline;
}

int64_t RunConfig::data_parallel(int64_t ranks) const {
  const int64_t model_ranks = parallel.tensor * parallel.context * parallel.pipeline;
  return model_ranks > 0 && ranks % model_ranks == 0 ? ranks / model_ranks : 0;
}

int64_t RunConfig::global_batch(int64_t ranks) const {
  return batch.global != 0 ? batch.global : batch.micro * data_parallel(ranks);
}

int64_t RunConfig::num_microbatches(int64_t ranks) const {
  const int64_t samples = batch.micro * data_parallel(ranks);
  CHECK(samples > 0 && global_batch(ranks) % samples == 0, "batch.global ", global_batch(ranks),
        " over ", ranks, " ranks was not validated");
  return global_batch(ranks) / samples;
}

int64_t RunConfig::virtual_stages() const {
  if (parallel.layout.empty()) return parallel.virtual_stages;
  const int64_t stages = num_layout_stages(parallel.layout).value_or(1);
  return stages % parallel.pipeline == 0 ? stages / parallel.pipeline : 1;
}

int64_t RunConfig::microbatch_group() const {
  return parallel.microbatch_group != 0 ? parallel.microbatch_group : parallel.pipeline;
}

std::string value_text(const RunConfig& config, const std::string& path) {
  std::string text;
  visit_values(config, [&](const std::string& name, const Field& field, const auto& value) {
    if (name == path) text = to_toml(field, value);
  });
  return text;
}

void derive_run_defaults(RunConfig& config, const std::string& config_path) {
  const Origin derived{.kind = Origin::Kind::Derived};
  for (const std::string& path : derive_defaults(config.model, config.moe)) {
    config.origins[path] = derived;
  }
  if (config.run.name.empty()) {
    config.run.name = std::filesystem::path(config_path).stem().string();
    config.origins["run.name"] = derived;
  }
  if (config.run.dir.empty()) {
    config.run.dir = "runs/" + config.run.name;
    config.origins["run.dir"] = derived;
  }
  if (config.optimizer.decay_steps == 0) {
    // A run that is shorter than its warm-up, to try something out, is a part of that warm-up.
    config.optimizer.decay_steps = std::max(config.run.steps, config.optimizer.warmup_steps + 1);
    config.origins["optimizer.decay_steps"] = derived;
  }
}

namespace {

// The values that `shown` picks, table by table, each with its origin as a comment.
template <class Shown>
std::string toml_text(const RunConfig& config, Shown&& shown) {
  std::string text;
  std::string table;  // heading that waits for its first value
  visit_values(
      config, [&](const std::string& path, const Table&) { table = "[" + path + "]\n"; },
      [&](const std::string& path, const Field& field, const auto& value) {
        if (!shown(path)) return;
        if (!table.empty()) text += (text.empty() ? "" : "\n") + std::exchange(table, "");
        const std::string toml = to_toml(field, value);
        const std::string line = toml.empty() ? fmt::format("# {} is not set", field.key)
                                              : fmt::format("{} = {}", field.key, toml);
        text += fmt::format("{:<48}  # {}\n", line, config.origin(path).text());
      });
  return text;
}

}  // namespace

std::string resolved_toml(const RunConfig& config) {
  return toml_text(config, [](const std::string&) { return true; });
}

std::string decided_toml(const RunConfig& config) {
  return toml_text(config, [&](const std::string& path) { return config.origins.count(path) > 0; });
}

namespace {

// The default as a reader of the documentation wants it.
std::string default_text(const Field& field, const std::string& toml) {
  if (field.required) return "required";
  if (toml.empty() || toml == "\"\"" || toml == "[]") return "not set";
  return "`" + toml + "`";
}

std::string legal_text(const Field& field) {
  std::string text;
  for (const std::string_view name : field.allowed) {
    text += fmt::format("{}`\"{}\"`", text.empty() ? "" : ", ", name);
  }
  if (text.empty()) text = field.range.text();
  if (!field.word.empty())
    text += fmt::format("{}`\"{}\"`", text.empty() ? "" : " or ", field.word);
  if (!field.zero.empty()) text += fmt::format("{}0: {}", text.empty() ? "" : "; ", field.zero);
  return text;
}

// A bar would end the cell of a table.
std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) {
    text.insert(at, 1, '\\');
  }
  return text;
}

}  // namespace

std::string config_markdown() {
  std::string text =
      "# Configuration\n\n"
      "A configuration is a TOML file. `extends = \"base.toml\"` at its top reads that file first "
      "(its path\nis relative to the file that names it). `table.key=value` on the command line "
      "overrides both; the\nvalue is TOML, and a bare word, alone or in a list, is a string. "
      "`ferry config FILE --resolved`\nprints every value and where it came from.\n\n"
      "Where a list is asked for, a single value stands for a list of one. This page is printed by "
      "the\nprogram (`ferry config --markdown`) from the list of fields that it reads "
      "configurations with.\n";
  const RunConfig defaults;
  visit_values(
      defaults,
      [&](const std::string& path, const Table& table) {
        text += fmt::format(
            "\n## [{}]\n\n{}\n\n| key | type | default | legal values | meaning |\n"
            "|---|---|---|---|---|\n",
            path, table.doc);
      },
      [&](const std::string&, const Field& field, const auto& value) {
        text += fmt::format("| `{}` | {} | {} | {} | {} |\n", field.key,
                            type_name<std::remove_cvref_t<decltype(value)>>(),
                            default_text(field, to_toml(field, value)), cell(legal_text(field)),
                            cell(std::string(field.doc)));
      });
  return text;
}

}  // namespace ferry
