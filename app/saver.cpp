#include "app/saver.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <utility>

#include "app/grace.h"
#include "app/version.h"
#include "checkpoint/agreement.h"
#include "checkpoint/directory.h"
#include "core/mark.h"
#include "core/seconds_since.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Saver::Saver(const Run& run, const Start& start, const std::string& layout,
             uint64_t data_fingerprint)
    : run_(run),
      data_fingerprint_(data_fingerprint),
      grace_s_(declared_grace(std::getenv("FERRY_GRACE_S"))),
      parent_(start.parent) {
  const RunConfig& config = run.config;
  if (start.parent_is_here) saved_step_ = start.progress.step;
  base_.run_dir = config.run.dir;
  base_.attempt = start.attempt.number;
  base_.descriptions = state_descriptions();
  base_.aliases = state_aliases();
  base_.config = resolved_toml(config);
  base_.layout = layout;
  base_.writer = "ferry " + version_text();
  base_.keep = config.checkpoint.keep == 0 ? std::numeric_limits<int>::max()
                                           : static_cast<int>(config.checkpoint.keep);
  base_.verify = config.checkpoint.verify_after_save;
  base_.file_system = &run.file_system;
  if (config.debug.slow_writer_mb_s > 0) {
    slow_ = std::make_unique<SlowFileSystem>(run.file_system, 1e6 * config.debug.slow_writer_mb_s);
    base_.file_system = slow_.get();
  }
  if (!config.checkpoint.beside_training()) return;
  snapshot_ =
      std::make_unique<GuardedSnapshot>(snapshot_source(run.model), config.checkpoint.copy_bytes());
  background_ = std::make_unique<BackgroundSave>(run.runtime.make_control("checkpoint"));
}

SaveRequest Saver::request(const Progress& progress) const {
  SaveRequest request = base_;
  request.step = progress.step;
  request.state = to_state(progress, run_.config.run.seed,
                           progress.step > 0 ? run_.model.schedule().at(progress.step) : 0.0,
                           data_fingerprint_);
  request.parent = parent_;
  return request;
}

void Saver::begin(const Progress& progress, const std::string& why, std::optional<double> left_s) {
  if (!make_way(progress)) return;
  mark(progress.step, "save");
  pending_ = {progress, why, background_ != nullptr, 0, 0, left_s};
  if (background_)
    begin_beside_training(progress);
  else
    end(save_now(progress), false);
}

void Saver::save(const Progress& progress, const std::string& why) {
  finish();
  mark(progress.step, "save");
  pending_ = {progress, why, false, 0, 0, std::nullopt};
  end(save_now(progress), true);
}

// One save in flight: another one waits for it, or is not made.
bool Saver::make_way(const Progress& progress) {
  if (!background_ || !background_->in_flight()) return true;
  const int64_t before = pending_.progress.step;
  if (run_.config.checkpoint.when_busy == "skip") {
    run_.console.notice(fmt::format(
        "no checkpoint of step {}: that of step {} is still being written (checkpoint.when_busy = "
        "skip)",
        progress.step, before));
    if (main_rank()) {
      nlohmann::ordered_json skipped = event("save_skipped", progress.step);
      skipped["in_flight"] = before;
      run_.events.write(skipped);
    }
    return false;
  }
  const auto start = Clock::now();
  finish();
  const double seconds = seconds_since(start);
  stalled(seconds);
  run_.console.notice(fmt::format(
      "training waited {:.1f} s until the checkpoint of step {} was written, before that of step "
      "{}: save less often, or have checkpoint.when_busy = skip",
      seconds, before, progress.step));
  if (main_rank()) {
    nlohmann::ordered_json waited = event("save_waited", progress.step);
    waited["in_flight"] = before;
    waited["seconds"] = seconds;
    run_.events.write(waited);
  }
  return true;
}

void Saver::begin_beside_training(const Progress& progress) {
  const auto start = Clock::now();
  const int64_t copied = snapshot_->copied_on_write();
  run_.model.finish_update();
  snapshot_->take();
  pending_.copied_on_write = -copied;  // until it ends
  SaveRequest next = request(progress);
  next.slices = snapshot_->slices();
  background_->begin(std::move(next), snapshot_->copied(), [this] { snapshot_->release(); });
  const double seconds = seconds_since(start);
  pending_.stall_seconds += seconds;
  stalled(seconds);
}

SaveOutcome Saver::save_now(const Progress& progress) {
  const auto start = Clock::now();
  SaveOutcome outcome;
  run_.model.finish_update();
  const StateSnapshot snapshot = StateSnapshot::now(snapshot_source(run_.model));
  outcome.copy_seconds = seconds_since(start);
  SaveRequest now = request(progress);
  now.slices = snapshot.slices();
  try {
    outcome.report = save_checkpoint(now, run_.runtime.control());
  } catch (const Error&) {
    outcome.error = std::current_exception();
  }
  pending_.stall_seconds = seconds_since(start);
  stalled(pending_.stall_seconds);
  return outcome;
}

void Saver::poll(int64_t busy_ranks) {
  if (background_ && background_->in_flight() && busy_ranks == 0) finish();
}

void Saver::finish() {
  if (!background_ || !background_->in_flight()) return;
  const SaveOutcome outcome = background_->finish();
  const double waited = snapshot_->take_waited_seconds();
  pending_.stall_seconds += waited;
  stalled(waited);
  pending_.copied_on_write += snapshot_->copied_on_write();
  end(outcome, false);
}

void Saver::stalled(double seconds) { stall_seconds_ = stall_seconds_.value_or(0) + seconds; }

std::optional<double> Saver::take_stall_seconds() {
  if (background_ && background_->in_flight()) {
    const double waited = snapshot_->take_waited_seconds();
    pending_.stall_seconds += waited;
    stalled(waited);
  }
  return std::exchange(stall_seconds_, std::nullopt);
}

void Saver::end(const SaveOutcome& outcome, bool must_succeed) {
  if (!outcome.error) return acknowledge(outcome);
  try {
    std::rethrow_exception(outcome.error);
  } catch (const Error& error) {
    if (must_succeed || error.code() != ExitCode::Storage) throw;
    tell_failure(error);
  }
  // A start that took over the run directory saves there now: this one is over.
  decide_on_root(run_.runtime.control(), "look for a later start", [&] {
    require_newest_attempt(run_.file_system, base_.run_dir, base_.attempt);
    return std::string();
  });
}

void Saver::acknowledge(const SaveOutcome& outcome) {
  const SaveReport& report = outcome.report;
  parent_ = CheckpointName{pending_.progress.step, report.root};
  saved_step_ = pending_.progress.step;
  for (const std::string& warning : report.warnings) run_.console.notice(warning);
  run_.console.line(fmt::format(
      "saved {} ({}): {:.0f} MB, write {:.1f} s, sync {:.1f} s, verify {:.1f} s, training stood "
      "still for {:.2f} s, root {}",
      report.directory.string(), pending_.why, static_cast<double>(report.bytes) / 1e6,
      report.write_seconds, report.sync_seconds, report.verify_seconds, pending_.stall_seconds,
      report.root.substr(0, 12)));
  if (main_rank()) {
    nlohmann::ordered_json saved = event("saved", pending_.progress.step);
    saved["why"] = pending_.why;
    saved["directory"] = report.directory.string();
    saved["bytes"] = report.bytes;
    saved["beside_training"] = pending_.beside_training;
    saved["seconds"] = outcome.copy_seconds + report.seconds;
    saved["stall_s"] = pending_.stall_seconds;
    saved["copy_s"] = outcome.copy_seconds;
    saved["write_s"] = report.write_seconds;
    saved["sync_s"] = report.sync_seconds;
    saved["verify_s"] = report.verify_seconds;
    if (pending_.copied_on_write > 0) saved["copied_on_write_bytes"] = pending_.copied_on_write;
    saved["root"] = report.root;
    run_.events.write(saved);
  }
  warn_of_grace(outcome.copy_seconds + report.seconds);
}

std::string Saver::saved_text() const {
  return saved_step_ < 0 ? "there is no checkpoint yet"
                         : fmt::format("the checkpoint of step {} is good", saved_step_);
}

void Saver::tell_failure(const Error& error) {
  run_.console.notice(fmt::format(
      "CHECKPOINT OF STEP {} FAILED: {}\n! training goes on, and the next save is tried; {}",
      pending_.progress.step, error.what(), saved_text()));
  if (!main_rank()) return;
  nlohmann::ordered_json failed = event("save_failed", pending_.progress.step);
  failed["why"] = pending_.why;
  failed["error"] = error.what();
  failed["exit_code"] = static_cast<int>(error.code());
  run_.events.write(failed);
}

// The first save tells what the last one will take.
void Saver::warn_of_grace(double save_seconds) {
  if (std::exchange(grace_checked_, true)) return;
  const std::string warning = grace_warning(save_seconds, grace_s_, pending_.left_s);
  if (!warning.empty()) run_.console.notice(warning);
}

}  // namespace ferry
