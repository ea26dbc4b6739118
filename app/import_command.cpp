#include "app/import_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "app/config_file.h"
#include "app/huggingface_model.h"
#include "app/optimizer_rule.h"
#include "app/toml_file.h"
#include "app/train_state.h"
#include "app/version.h"
#include "checkpoint/directory.h"
#include "core/check.h"
#include "huggingface/import_weights.h"
#include "huggingface/staged_directory.h"

namespace ferry {
namespace {

struct Options {
  std::string directory;
  std::string out;
  std::vector<std::string> overrides;
};

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// What is derived from the file, or said to come from it, is of the file that stays, not of the
// temporary one.
RunConfig load_imported(const std::string& toml, const Path& out,
                        const std::vector<std::string>& overrides) {
  RunConfig config = load_valid_config(TomlFile(toml).path(), overrides, 0);
  const std::string file = (out / "model.toml").string();
  for (auto& [path, origin] : config.origins)
    if (origin.kind == Origin::Kind::File) origin.file = file;
  const std::string name = (out.has_filename() ? out : out.parent_path()).filename().string();
  if (config.origin("run.name").kind == Origin::Kind::Derived) config.run.name = name;
  if (config.origin("run.dir").kind == Origin::Kind::Derived)
    config.run.dir = "runs/" + config.run.name;
  return config;
}

void run(const Options& options) {
  FileSystem& file_system = posix_file_system();
  const Path source = options.directory;
  if (!file_system.exists(source / "config.json"))
    fail(ExitCode::Storage, "error: ", source.string(), " has no config.json\n  try : a directory ",
         "with config.json and safetensors files");
  const HfConfig hf =
      parse_config_json(read_text(file_system, source / "config.json", kMaxConfigBytes),
                        (source / "config.json").string());
  const std::string toml = model_toml(hf);
  const RunConfig config = load_imported(toml, options.out, options.overrides);
  const std::vector<TensorLink> links = tensor_links(describe_model(config));
  const WeightFiles files(source);
  require_weights_of(files, links);

  StagedDirectory staged(options.out);
  write_text(file_system, staged.partial() / "model.toml", toml);
  write_text(file_system, staged.partial() / "resolved.toml", resolved_toml(config));
  SaveRequest request;
  request.run_dir = staged.partial();
  request.state = to_state(Progress{}, config.run.seed, 0.0, 0);
  request.descriptions = state_descriptions();
  request.aliases = state_aliases();
  request.config = resolved_toml(config);
  request.layout = "imported from " + std::string(architecture(family_of(hf.model)));
  request.writer = "ferry " + version_text();
  const auto rule = make_update_rule(config.optimizer);
  const std::vector<std::string> moments(rule->moment_names().begin(), rule->moment_names().end());
  const SaveReport report = import_weights(files, links, moments, request);
  staged.publish();
  for (const std::string& warning : report.warnings) fmt::print(stderr, "warning: {}\n", warning);
  fmt::print("{}\nimported {} to {}: {}, tensors {}, bytes {}, root {}\n", decided_toml(config),
             options.directory, (Path(options.out) / "ckpt" / step_directory_name(0)).string(),
             architecture(family_of(hf.model)), links.size(), report.bytes, report.root);
}

}  // namespace

void add_import_command(CLI::App& root) {
  CLI::App* command = root.add_subcommand("import", "Make a checkpoint from formats of others");
  command->require_subcommand(1);
  command->footer("Example:\n  ferry import hf OLMoE-1B-7B runs/olmoe-hf");
  const auto options = std::make_shared<Options>();
  CLI::App* hf = command->add_subcommand(
      "hf", "From a Hugging Face model directory with config.json and safetensors");
  hf->add_option("DIR", options->directory, "The model's directory")->required();
  hf->add_option("OUT", options->out, "Run directory to make; must not be there")->required();
  hf->add_option("OVERRIDES", options->overrides, "table.key=value ...");
  hf->footer("Example:\n  ferry import hf OLMoE-1B-7B runs/olmoe-hf model.seq=2048");
  hf->callback([options] { run(*options); });
}

}  // namespace ferry
