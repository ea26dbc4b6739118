#include "app/start.h"

#include <fmt/format.h>

#include <filesystem>

#include "app/model/cost_model.h"
#include "app/resume_changes.h"
#include "app/run_directory.h"
#include "app/train_state.h"
#include "checkpoint/agreement.h"
#include "checkpoint/latest.h"
#include "checkpoint/preflight.h"
#include "checkpoint/run_id.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

// The checkpoint that checkpoint.resume asks for, if it asks for one and there is one. What was
// passed over is added to `notes`.
std::optional<Checkpoint> find_checkpoint(const RunConfig& config, Control& control,
                                          std::string& notes) {
  const fs::path dir = config.run.dir;
  const std::string& wanted = config.checkpoint.resume;
  std::optional<Checkpoint> checkpoint;
  if (wanted != "auto" && wanted != "none") {
    checkpoint = Checkpoint::open(wanted);
    if (config.run.fresh && is_inside(wanted, dir))
      fail(ExitCode::Usage, "error: run.fresh would rename the directory that ", wanted,
           " is in\n  --> run.fresh, checkpoint.resume\n  try : another run.dir");
  } else if (wanted == "auto" && !config.run.fresh) {
    Latest latest = find_latest(dir, control);
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
  return checkpoint;
}

// Refuses, or describes in lines for the banner, what of the configuration and the data is not as
// it was when the checkpoint was written.
std::string compare_with(const Checkpoint& checkpoint, const Progress& progress,
                         const RunConfig& config, int64_t ranks, const TokenDataset& data) {
  const CheckpointSettings settings{checkpoint.directory().string(), checkpoint.manifest().config,
                                    progress.step, progress.samples};
  const auto found = checkpoint.state().find("data/fingerprint");
  const bool has_fingerprint = found != checkpoint.state().end();
  const StateValue fingerprint = fmt::format("{:016x}", data.fingerprint());
  const bool same_data = has_fingerprint && found->second == fingerprint;
  const std::vector<std::string>& allowed = config.checkpoint.allow_changes;

  const std::vector<ConfigChange> changes = changes_on_resume(settings, config, ranks, same_data);
  const std::string notes = describe_changes(settings, changes, allowed);
  if (same_data || !has_fingerprint || changes_samples(changes)) return notes;
  const std::string text =
      concat("its fingerprint is ",
             std::visit([](const auto& value) { return concat(value); }, found->second),
             ", that of ", data.describe(), " is ", std::get<std::string>(fingerprint));
  if (is_allowed_change("data.train", allowed))
    return concat(notes, "\n! other data (allowed): ", text);
  fail(ExitCode::Data, "error: ", settings.name,
       " was trained on other data\n  --> data.train\n  why : ", text,
       ", though the settings are the same: the files themselves changed\n"
       "  try : the same files, checkpoint.allow_changes=[data.train] to go on with these, or "
       "checkpoint.weights_only=true");
}

void require_storage_together(const RunConfig& config, Runtime& runtime) {
  decide_on_root(runtime.control(), "look for space", [&] {
    const DType stored = accumulate_dtype(dtype_of(config.model.precision));
    require_storage(
        posix_file_system(), checkpoint_folder(config.run.dir),
        state_bytes(count_parameters(config.gpt()).total(), static_cast<int64_t>(size_of(stored))),
        runtime.size());
    return std::string();
  });
}

}  // namespace

Start begin_run(const RunConfig& config, Runtime& runtime, TrainModel& model,
                const TokenDataset& train_data) {
  const fs::path dir = config.run.dir;
  Control& control = runtime.control();
  Start start;
  std::string notes;
  const std::optional<Checkpoint> checkpoint = find_checkpoint(config, control, notes);
  const bool continues = checkpoint && !config.checkpoint.weights_only;
  if (continues) {
    start.progress = progress_of(checkpoint->state(), checkpoint->directory().string());
    notes += decide_on_root(control, "compare with the checkpoint", [&] {
      return compare_with(*checkpoint, start.progress, config, runtime.size(), train_data);
    });
  }
  if (checkpoint) refuse_other_model(*checkpoint, parameter_names(config.gpt()));
  // With auto, later checkpoints are the rejected ones, and their steps are made again.
  if (checkpoint && (config.checkpoint.resume != "auto" || config.checkpoint.weights_only))
    refuse_other_branch(dir, start.progress.step, config.run.fresh);

  std::string aside;
  if (runtime.rank() == 0) aside = prepare_run_directory(dir, config.run.fresh, continues);
  control.barrier("run directory");
  start.attempt = begin_attempt(dir, control);
  for (const std::string& removed : start.attempt.removed)
    notes += fmt::format("\n! removed {}, which an earlier start left unfinished", removed);
  if (!aside.empty()) notes += fmt::format("\n! the earlier run was renamed to {}", aside);
  for (const std::string& notice : start.attempt.notices) notes += "\n! " + notice;
  if (config.checkpoint.every > 0 || config.checkpoint.save_at_exit)
    require_storage_together(config, runtime);
  start.description = "from scratch" + notes;
  if (!checkpoint) return start;

  const LoadReport report = model.load(*checkpoint, config.checkpoint.weights_only);
  const std::string name = checkpoint->directory().string();
  start.description = fmt::format("weights of {}{}", name, notes);
  if (!continues) return start;
  start.parent = CheckpointName{checkpoint->step(), checkpoint->root(), checkpoint->manifest().run};
  start.parent_is_here = is_inside(checkpoint->directory(), dir);
  start.description = fmt::format("{} (verified, {:.0f} MB in {:.1f} s){}", name,
                                  static_cast<double>(report.bytes) / 1e6, report.seconds, notes);
  return start;
}

}  // namespace ferry
