#pragma once

// What a person sees of a run: the banner, a line per step, notices, the summary. The terminal and
// log/run.log get the same text.

#include <filesystem>
#include <fstream>
#include <string>

#include "app/backend.h"
#include "app/run_config.h"
#include "app/step_report.h"
#include "core/comm/mesh.h"

namespace ferry {

class Console {
 public:
  /// Prints on rank 0 only, and appends to `run_dir`/log/run.log, which exists.
  /// Error(ExitCode::Storage), here and later, if that fails.
  Console(bool prints, const std::filesystem::path& run_dir);

  void line(const std::string& text);
  /// A notice among the step lines: "! text".
  void notice(const std::string& text) { line("! " + text); }
  void step(const StepReport& report, int64_t total_steps, int num_ranks, int64_t device_bytes);

 private:
  void check_file() const;

  bool prints_;
  std::ofstream file_;
  double seconds_per_step_ = 0;  // running mean, for the ETA
};

/// The lines before the first step.
std::string banner(const RunConfig& config, const Mesh& mesh, const Backend& backend,
                   const std::string& host, const std::string& data, const std::string& resume);

/// Dense bf16 peak of the device in FLOP/s, which MFU refers to; 0 where not known.
double peak_flops(const std::string& device_name, const std::string& precision);

/// "4d 3h", "2h 05m", "3m 20s", "12s".
std::string duration_text(double seconds);
/// "17.7k", "4.19 M".
std::string count_text(double value);

}  // namespace ferry
