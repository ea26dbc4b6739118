#include "app/start.h"

#include <fmt/format.h>

#include <filesystem>

#include "app/model/cost_model.h"
#include "app/run_directory.h"
#include "app/train_state.h"
#include "checkpoint/latest.h"

namespace ferry {

Start begin_run(const RunConfig& config, Runtime& runtime, TrainModel& model,
                const TokenDataset& train_data) {
  const std::filesystem::path dir = config.run.dir;
  Start start;
  const std::string& wanted = config.checkpoint.resume;
  std::optional<Checkpoint> checkpoint;
  std::string notes;
  if (wanted != "auto" && wanted != "none") {
    checkpoint = Checkpoint::open(wanted);
    if (config.run.fresh && is_inside(wanted, dir))
      fail(ExitCode::Usage, "error: run.fresh would rename the directory that ", wanted,
           " is in\n  --> run.fresh, checkpoint.resume\n  try : another run.dir");
  } else if (wanted == "auto" && !config.run.fresh) {
    Latest latest = find_latest(dir, runtime.control());
    for (const Rejected& rejected : latest.rejected)
      notes += fmt::format("\n! {} is not used: {}", rejected.directory.string(), rejected.reason);
    if (!latest.checkpoint && !latest.rejected.empty())
      fail(ExitCode::Storage, "error: no checkpoint in ", dir.string(), " can be used", notes,
           "\n  why : starting from scratch would lose the run without a word\n",
           "  try : restore one of them, checkpoint.resume=PATH, or run.fresh=true");
    checkpoint = std::move(latest.checkpoint);
  }

  if (config.checkpoint.weights_only && !checkpoint)
    fail(ExitCode::Usage, "error: checkpoint.weights_only, but ", dir.string(),
         " has no checkpoint to take weights from\n  try : checkpoint.resume=PATH of a checkpoint");
  const bool continues = checkpoint && !config.checkpoint.weights_only;
  // With auto, later checkpoints are the rejected ones, and their steps are made again.
  if (checkpoint && (wanted != "auto" || config.checkpoint.weights_only))
    refuse_other_branch(dir, continues ? checkpoint->step() : 0, config.run.fresh);

  std::string aside;
  if (runtime.rank() == 0) aside = prepare_run_directory(dir, config.run.fresh, continues);
  runtime.control().barrier("run directory");
  start.attempt = begin_attempt(dir, runtime.control());
  for (const std::string& removed : start.attempt.removed)
    notes += fmt::format("\n! removed {}, which an earlier start left unfinished", removed);
  if (!aside.empty()) notes += fmt::format("\n! the earlier run was renamed to {}", aside);
  if (runtime.rank() == 0 && (config.checkpoint.every > 0 || config.checkpoint.save_at_exit))
    require_free_space(
        posix_file_system(), dir,
        state_bytes(
            count_parameters(config.gpt()).total(),
            static_cast<int64_t>(size_of(accumulate_dtype(dtype_of(config.model.precision))))));
  start.description = "from scratch" + notes;
  if (!checkpoint) return start;

  refuse_other_model(*checkpoint, parameter_names(config.gpt()));
  const LoadReport report = model.load(*checkpoint, config.checkpoint.weights_only);
  const std::string name = checkpoint->directory().string();
  start.description = fmt::format("weights of {}{}", name, notes);
  if (config.checkpoint.weights_only) return start;
  start.progress = progress_of(checkpoint->state(), name);
  const auto stored = checkpoint->state().find("data/fingerprint");
  const std::string fingerprint = fmt::format("{:016x}", train_data.fingerprint());
  if (stored != checkpoint->state().end() && std::get<std::string>(stored->second) != fingerprint)
    fail(
        ExitCode::Data, "error: ", name, " was trained on other data\n  --> data.train\n",
        "  why : its fingerprint is ", std::get<std::string>(stored->second), ", that of ",
        train_data.describe(), " is ", fingerprint,
        "\n  try : the same files, data.split, run.seed, model.seq, run.steps and batch.global, or "
        "checkpoint.weights_only=true");
  start.parent = CheckpointName{checkpoint->step(), checkpoint->root()};
  start.parent_is_here = is_inside(checkpoint->directory(), dir);
  start.description = fmt::format("{} (verified, {:.0f} MB in {:.1f} s){}", name,
                                  static_cast<double>(report.bytes) / 1e6, report.seconds, notes);
  return start;
}

}  // namespace ferry
