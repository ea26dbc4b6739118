#include "app/export_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "app/ckpt_find.h"
#include "app/config_file.h"
#include "app/huggingface_model.h"
#include "app/toml_file.h"
#include "core/check.h"
#include "huggingface/export_weights.h"
#include "huggingface/staged_directory.h"

namespace ferry {
namespace {

struct Options {
  std::string checkpoint;
  std::string out;
  std::string dtype = "bf16";
  double shard_gb = 5;
  std::string tokenizer;
};

// What Transformers looks for beside the weights; one of the first three must be there.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer.model",
                                           "vocab.json",
                                           "merges.txt",
                                           "vocab.bpe",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "chat_template.jinja",
                                           "generation_config.json"};
constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

std::vector<std::string> tokenizer_files(const std::string& directory) {
  std::vector<std::string> names;
  if (directory.empty()) return names;
  const auto exists = [&](const char* name) {
    return posix_file_system().exists(Path(directory) / name);
  };
  if (!exists(kTokenizerFiles[0]) && !exists(kTokenizerFiles[1]) && !exists(kTokenizerFiles[2]))
    fail(ExitCode::Data, "error: ", directory, " has no tokenizer\n  why : none of ",
         kTokenizerFiles[0], ", ", kTokenizerFiles[1], " and ", kTokenizerFiles[2],
         " is there\n  try : --tokenizer DIR with the directory that has it");
  for (const char* name : kTokenizerFiles)
    if (exists(name)) names.emplace_back(name);
  return names;
}

void run(const Options& options) {
  const Checkpoint checkpoint = find_checkpoint(options.checkpoint);
  const RunConfig config = load_valid_config(TomlFile(checkpoint.manifest().config).path(), {}, 0);
  const ModelDescription model = describe_model(config);
  const std::vector<std::string> tokenizer = tokenizer_files(options.tokenizer);

  ExportRequest request;
  request.dtype = options.dtype == "bf16" ? DType::BF16 : DType::F32;
  request.shard_bytes = static_cast<int64_t>(options.shard_gb * 1e9);
  StagedDirectory staged(options.out);
  request.directory = staged.partial();
  FileSystem& file_system = posix_file_system();
  write_text(file_system, request.directory / "config.json",
             to_config_json(model, request.dtype).dump(2) + "\n");
  for (const std::string& name : tokenizer)
    write_text(file_system, request.directory / name,
               read_text(file_system, Path(options.tokenizer) / name, kMaxTokenizerBytes));
  const ExportReport report = export_weights(checkpoint, model, request);
  staged.publish();
  fmt::print("exported step {} of {} to {}: {}, tensors {}, bytes {}, files {}, verified\n",
             checkpoint.step(), checkpoint.directory().native(), options.out,
             architecture(family_of(model)), report.num_tensors, report.bytes,
             report.files.size() + 1 + tokenizer.size());
}

}  // namespace

void add_export_command(CLI::App& root) {
  CLI::App* command = root.add_subcommand("export", "Write a checkpoint in formats of others");
  command->require_subcommand(1);
  command->footer("Example:\n  ferry export hf runs/olmoe exported");
  const auto options = std::make_shared<Options>();
  CLI::App* hf = command->add_subcommand(
      "hf", "A Hugging Face model directory: safetensors, config.json and the tokenizer's files");
  hf->add_option("CKPT", options->checkpoint, "Checkpoint, or run directory (its newest)")
      ->required();
  hf->add_option("OUT", options->out, "Directory to make; must not be there")->required();
  hf->add_option("--dtype", options->dtype, "bf16 (default) or fp32, exact")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  hf->add_option("--shard-gb", options->shard_gb, "Size of a file, GB (default 5)")
      ->check(CLI::Range(1e-6, 1e6));
  hf->add_option("--tokenizer", options->tokenizer, "Directory whose tokenizer files are copied");
  hf->footer("Example:\n  ferry export hf runs/olmoe exported --tokenizer data/tokenizer");
  hf->callback([options] { run(*options); });
}

}  // namespace ferry
