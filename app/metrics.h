#pragma once

// metrics.jsonl and events.jsonl: one JSON object a line, appended and flushed. Values that do not
// apply are absent, never 0.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace ferry {

/// Appends lines; Error(ExitCode::Storage) if a write fails (full disk).
class JsonLines {
 public:
  JsonLines() = default;
  explicit JsonLines(const std::filesystem::path& path);
  void write(const nlohmann::ordered_json& object);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

/// Lines of steps after `step` (from a run that went further before it was resumed) move from
/// metrics.jsonl to metrics.jsonl.1, so that plots never double back. A torn last line is dropped.
void cut_metrics_after(const std::filesystem::path& run_dir, int64_t step);

}  // namespace ferry
