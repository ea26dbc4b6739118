#pragma once

// What a person sees of a run: the banner, a line per step, notices, the summary. The terminal and
// log/run.log get the same text.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "app/backend.h"
#include "app/run_config.h"
#include "core/comm/mesh.h"

namespace ferry {

/// Everything a step reports; `metrics.jsonl` holds the same.
struct StepReport {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double seconds = 0;
  double data_seconds = 0;  // waiting for the loader
  double tokens = 0;        // of this step, over all ranks
  double aux_loss = 0;      // mean over MoE layers and micro-batches, without coefficient
  double z_loss = 0;
  bool has_aux = false;
  bool has_z = false;
  double balance = 0;    // largest over MoE layers of busiest expert / mean
  int64_t dead_experts = 0;  // experts without a token in this step, over all MoE layers
  double flops = 0;      // model FLOPs of this step, over all ranks
  double mfu = 0;        // of the device's peak; 0 where the peak is not known
  int64_t device_peak_bytes = 0;
};

class Console {
 public:
  /// Prints on rank 0 only, and appends to `run_dir`/log/run.log.
  Console(bool prints, const std::filesystem::path& run_dir);

  void line(const std::string& text);
  /// A notice among the step lines: "! text".
  void notice(const std::string& text) { line("! " + text); }
  void step(const StepReport& report, int64_t total_steps, int num_ranks, int64_t device_bytes);

 private:
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
