#include "app/eval_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/backend.h"
#include "app/ckpt_find.h"
#include "app/config_file.h"
#include "app/evaluation.h"
#include "app/gemm_cache.h"
#include "app/job.h"
#include "app/logits_file.h"
#include "app/toml_file.h"
#include "app/train_state.h"

namespace ferry {
namespace {

struct Options {
  std::string checkpoint;
  std::vector<std::string> data;
  std::vector<std::string> overrides;
  int64_t batches = 0;
  std::string logits;
  int64_t samples = 4;
  bool json = false;
};

ExitCode run(const Options& options, Runtime& runtime) {
  const Checkpoint checkpoint = find_checkpoint(options.checkpoint, runtime.control());
  const TomlFile stored(checkpoint.manifest().config);
  RunConfig config = load_valid_config(stored.path(), options.overrides, runtime.size());
  if (!options.data.empty()) config.data.valid = options.data;
  if (options.batches > 0) config.run.eval_batches = options.batches;
  const auto data = open_validation_data(config, runtime.size());
  if (!data)
    fail(ExitCode::Usage, "error: the run of this checkpoint had no validation data\n",
         "  try : --data PREFIX");

  const Backend backend = choose_backend(config, runtime);
  open_gemm_cache(config, /*may_record=*/false, backend.device(), runtime.control());
  const auto stream = backend.device().make_stream("compute");
  const MeshGroups groups(Mesh(runtime.size(), mesh_sizes(config.parallel)), *backend.world);
  ParallelModel model(config, *stream, groups);
  refuse_other_model(checkpoint, parameter_names(config.gpt()));
  load_weights(*stream, checkpoint, model.parameters());

  std::unique_ptr<LogitsFile> logits;
  if (!options.logits.empty())
    logits = std::make_unique<LogitsFile>(model, options.logits, options.samples);
  const EvaluationResult result = evaluate(model, data, config.run.eval_batches);
  if (runtime.rank() != 0) return ExitCode::Done;
  const int64_t logit_samples = logits ? logits->write() : 0;
  if (options.json) {
    nlohmann::ordered_json json = {{"checkpoint", checkpoint.directory().string()},
                                   {"step", checkpoint.step()},
                                   {"valid_loss", result.loss},
                                   {"perplexity", std::exp(result.loss)},
                                   {"tokens", result.tokens}};
    if (logits) {
      json["logits"] = options.logits;
      json["logit_samples"] = logit_samples;
    }
    std::cout << json.dump() << std::endl;
  } else {
    std::cout << fmt::format("step {} | valid loss {:.4f} | perplexity {:.2f} | {:.0f} tokens",
                             checkpoint.step(), result.loss, std::exp(result.loss), result.tokens)
              << std::endl;
    if (logits)
      std::cout << fmt::format("logits of {} samples in {}", logit_samples, options.logits)
                << std::endl;
  }
  return ExitCode::Done;
}

}  // namespace

void add_eval_command(CLI::App& root, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("eval", "The validation loss of a checkpoint");
  command->add_option("CKPT", options->checkpoint, "Checkpoint, or run directory (its newest)")
      ->required();
  command->add_option("OVERRIDES", options->overrides, "table.key=value ...");
  command->add_option("--data", options->data, "Token files instead of the run's data.valid");
  command->add_option("--batches", options->batches, "Global batches (default: run.eval_batches)")
      ->check(CLI::PositiveNumber);
  command->add_option("--logits", options->logits,
                      "Writes logits to this new file: NumPy, FP32, [samples, seq, vocab]");
  command->add_option("--samples", options->samples, "Samples whose logits are written, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--json", options->json, "As JSON");
  command->footer("Example: ferry eval runs/quickstart --data data/quickstart/valid");
  command->callback([options, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) { return run(*options, runtime); });
  });
}

}  // namespace ferry
