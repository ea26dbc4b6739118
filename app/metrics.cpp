#include "app/metrics.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <optional>

#include "core/check.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const fs::path& path) {
  fail(ExitCode::Storage, "error: cannot write ", path.string(),
       "\n  why : no permission, or the disk is full\n  try : make room, then the same command");
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_text(const fs::path& path, const std::string& text, std::ios::openmode mode) {
  std::ofstream out(path, std::ios::binary | mode);
  out << text << std::flush;
  if (!out) fail_to_write(path);
}

std::optional<int64_t> step_of(const std::string& line) {
  const auto object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer())
    return std::nullopt;
  return object["step"].get<int64_t>();
}

}  // namespace

JsonLines::JsonLines(const fs::path& path) : path_(path) {
  if (fs::is_regular_file(path)) {
    const std::string text = read_text(path);
    const size_t whole = text.rfind('\n') + 1;  // 0 if there is none
    std::error_code error;
    if (whole < text.size()) fs::resize_file(path, whole, error);
    if (error) fail_to_write(path);
  }
  out_.open(path, std::ios::app);
  if (!out_) fail_to_write(path);
}

void JsonLines::write(const nlohmann::ordered_json& object) {
  out_ << object.dump() << '\n' << std::flush;
  if (!out_) fail_to_write(path_);
}

nlohmann::ordered_json metrics_line(const StepReport& r, const MetricsContext& context) {
  nlohmann::ordered_json line = {
      {"step", r.step}, {"samples", r.samples}, {"tokens", r.total_tokens},
      {"loss", r.loss}, {"lr", r.lr},           {"grad_norm", r.grad_norm}};
  if (r.aux_loss) line["aux_loss"] = *r.aux_loss;
  if (r.z_loss) line["z_loss"] = *r.z_loss;
  if (r.valid_loss) line["valid_loss"] = *r.valid_loss;
  line["step_s"] = r.seconds;
  line["tokens_per_s"] = r.tokens / r.seconds;
  line["tflops"] = r.flops / r.seconds / 1e12 / context.num_ranks;
  if (r.mfu > 0) line["mfu"] = r.mfu;
  line["skipped"] = 0;
  line["nonfinite"] = 0;
  line[context.on_gpu ? "device_peak_bytes" : "host_bytes"] = r.peak_bytes;
  if (context.on_gpu) line["pinned_bytes"] = r.pinned_bytes;
  if (!r.activation_bytes.empty()) line["activation_bytes"] = r.activation_bytes;
  const auto whole = [](const std::map<std::string, double>& numbers) {
    nlohmann::ordered_json object;
    for (const auto& [module, number] : numbers) object[module] = static_cast<int64_t>(number);
    return object;
  };
  if (!r.d2h_bytes.empty()) line["d2h_bytes"] = whole(r.d2h_bytes);
  if (!r.h2d_bytes.empty()) line["h2d_bytes"] = whole(r.h2d_bytes);
  line["optimizer_s"] = r.optimizer_seconds;
  if (!r.optimizer_update_s.empty()) line["optimizer_update_s"] = r.optimizer_update_s;
  line["exposed_s"] = {{"data", r.data_seconds}};
  if (r.checkpoint_seconds) line["exposed_s"]["checkpoint"] = *r.checkpoint_seconds;
  for (const auto& [module, seconds] : r.offload_exposed_s)
    line["exposed_s"]["offload." + module] = seconds;
  if (!r.expert_tokens.empty()) line["expert_tokens"] = r.expert_tokens;
  return line;
}

nlohmann::ordered_json nonfinite_line(const StepReport& r) {
  return {{"step", r.step},           {"samples", r.samples}, {"loss", r.loss},
          {"grad_norm", r.grad_norm}, {"skipped", 1},         {"nonfinite", 1}};
}

nlohmann::ordered_json event(const std::string& name, int64_t step) {
  return {{"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
          {"event", name},
          {"step", step}};
}

void cut_metrics_after(const fs::path& run_dir, int64_t step) {
  const fs::path path = run_dir / "metrics.jsonl";
  std::ifstream in(path);
  if (!in) return;
  std::string kept, cut, line;
  while (std::getline(in, line)) {
    if (in.eof()) break;  // torn: its line feed is missing
    if (const std::optional<int64_t> at = step_of(line)) (*at <= step ? kept : cut) += line + '\n';
  }
  in.close();
  // First the copy of what is cut, then the one rename: a failure in between loses nothing.
  const fs::path next = run_dir / "metrics.jsonl.next";
  write_text(next, kept, std::ios::trunc);
  if (!cut.empty()) write_text(run_dir / "metrics.jsonl.1", cut, std::ios::app);
  std::error_code error;
  fs::rename(next, path, error);
  if (error) fail_to_write(path);
}

}  // namespace ferry
