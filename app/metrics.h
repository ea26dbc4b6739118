#pragma once

// metrics.jsonl and events.jsonl: one JSON object a line, appended and flushed. Values that do not
// apply are absent, never 0; a number that is not finite is null.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "app/step_report.h"

namespace ferry {

/// Appends lines; Error(ExitCode::Storage) if a write fails (full disk).
class JsonLines {
 public:
  JsonLines() = default;
  /// Removes a torn last line, which a run that was killed may have left.
  explicit JsonLines(const std::filesystem::path& path);
  void write(const nlohmann::ordered_json& object);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

/// What is fixed for a run and decides which keys a line of metrics.jsonl has.
struct MetricsContext {
  int num_ranks = 1;
  bool on_gpu = false;
};

/// The line of one step.
nlohmann::ordered_json metrics_line(const StepReport& report, const MetricsContext& context);

/// The line of a step that ended in non-finite numbers and was not made.
nlohmann::ordered_json nonfinite_line(const StepReport& report);

/// Starts an object of events.jsonl: what happened after which step, and when (UTC).
nlohmann::ordered_json event(const std::string& name, int64_t step);

/// Lines of steps after `step` (from a run that went further before it was resumed) move from
/// metrics.jsonl to metrics.jsonl.1, so that plots never double back. Lines that are not metrics,
/// such as a torn last one, are dropped. Error(ExitCode::Storage), with both files as they were, if
/// that cannot be written.
void cut_metrics_after(const std::filesystem::path& run_dir, int64_t step);

}  // namespace ferry
