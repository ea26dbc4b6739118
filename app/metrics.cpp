#include "app/metrics.h"

#include "core/check.h"

namespace ferry {

JsonLines::JsonLines(const std::filesystem::path& path) : path_(path), out_(path, std::ios::app) {
  if (!out_) fail(ExitCode::Storage, "cannot append to ", path.string(), ": check its permissions");
}

void JsonLines::write(const nlohmann::ordered_json& object) {
  out_ << object.dump() << '\n' << std::flush;
  if (!out_) fail(ExitCode::Storage, "writing to ", path_.string(), " failed: is the disk full?");
}

void cut_metrics_after(const std::filesystem::path& run_dir, int64_t step) {
  const std::filesystem::path path = run_dir / "metrics.jsonl";
  std::ifstream in(path);
  if (!in) return;
  std::string kept, cut, line;
  while (std::getline(in, line)) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_discarded() || !object.contains("step")) continue;
    (object["step"].get<int64_t>() <= step ? kept : cut) += line + '\n';
  }
  in.close();
  const std::filesystem::path next = run_dir / "metrics.jsonl.next";
  std::ofstream(next) << kept;
  if (!cut.empty()) std::ofstream(run_dir / "metrics.jsonl.1", std::ios::app) << cut;
  std::filesystem::rename(next, path);
}

}  // namespace ferry
