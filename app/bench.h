#pragma once

// Measuring. A rate is the work of one call over the median time of several repetitions, each of
// enough calls that the clock's resolution and the launch of the first call do not count. Nothing
// is timed on zeros; where the inputs fit in a cache, several sets take turns.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "core/comm/runtime.h"
#include "core/stream.h"

namespace ferry {

/// Seconds of one call.
struct CallTimes {
  double median = 0;
  double fastest = 0;
};

/// Of the times of one call, at least one.
CallTimes call_times(const std::vector<double>& seconds);

/// One row of a table. A row has a rate of bytes or of operations.
struct BenchRow {
  std::string bench;  // ops, copy, step
  std::string name;
  std::string shape;
  CallTimes times = {};
  double bytes = 0;  // moved by one call: each input read once, each output written once
  double flops = 0;
  double ceiling = 0;  // bytes/s or FLOP/s, measured in this run

  double rate() const { return (flops > 0 ? flops : bytes) / times.median; }
};

/// Seconds of one call of `enqueue`, after warming up.
CallTimes time_calls(Stream& stream, const std::function<void()>& enqueue);

/// The two ceilings of a device: a large copy (bytes read + written per second) and a large product
/// in `dtype` (FLOP/s).
double measure_copy_ceiling(Stream& stream);
double measure_gemm_ceiling(Stream& stream, DType dtype);
/// The same product for a second: the rate at the clock that the device holds.
double measure_sustained_gemm(Stream& stream, DType dtype);

std::vector<BenchRow> bench_ops(Stream& stream, const RunConfig& config);
std::vector<BenchRow> bench_copy(Stream& stream);

/// "median_us" and "fastest_us" of a row of JSON.
void add_times(nlohmann::ordered_json& row, const CallTimes& times);
/// What every row of JSON ends with: machine, commit, date, command.
void add_origin(nlohmann::ordered_json& row, const std::string& machine,
                const std::string& command);

/// As text, or one JSON object a line with machine, commit and date.
std::string bench_table(const std::vector<BenchRow>& rows);
std::string bench_json(const std::vector<BenchRow>& rows, const std::string& config,
                       const std::string& machine, const std::string& command);

/// The executor on all ranks as one pipeline on their CPUs, with a busy loop for each pass: time of
/// the passes alone, of a step, and the bubble beside (p - 1) / (m * v). Prints a row for each of
/// several numbers of micro-batches and chunks.
ExitCode bench_pipeline(Runtime& runtime, int64_t forward_us, int64_t steps, bool json,
                        const std::string& command);

/// Collectives and messages between neighbours, on the groups that training would use, of 4 KiB up
/// to `max_mib` MiB (1 GiB at most): each checked once and then timed, beside the rate of the peer
/// copy between two GPUs, of a copy in host memory on CPUs, or else of the largest message between
/// neighbours. Only the configuration's choice of a backend counts. Error(ExitCode::Usage) on one
/// rank; Error(ExitCode::Internal) if a result is wrong.
ExitCode bench_comm(const RunConfig& config, Runtime& runtime, int64_t max_mib, bool json,
                    const std::string& command);

struct StepBenchOptions {
  int64_t warmup = 2;
  int64_t steps = 5;
  // After them, two steps more under core/device_trace.h: each kernel's time, and the share of
  // these steps in which rank 0's GPU was busy.
  bool kernels = false;
  bool json = false;
  std::string command;
};
/// Trains `steps` steps after `warmup` on the configuration's data and prints tokens/s, TFLOP/s,
/// MFU and peak memory; on one GPU also the rate of a second of dense products just before. No
/// checkpoint, no run directory. Error(ExitCode::Usage) for `kernels` without a GPU.
ExitCode bench_step(const RunConfig& config, Runtime& runtime, const StepBenchOptions& options);

/// AdamW and SGD on the host (BF16 values, FP32 state) with 1, 2, 4 ... and all threads, and with
/// each VectorLevel, beside loops that read and write the same memory and do almost nothing else,
/// and beside plain read, copy and triad; with a GPU also while copies run both ways, and the GPU's
/// own update. `elements` 0: four times the last-level cache, or a quarter of the free memory. The
/// levels are compared bit for bit first. Error(ExitCode::Usage) on more than one rank,
/// Error(ExitCode::Resource) for more elements than there is memory.
ExitCode bench_adam(Runtime& runtime, int64_t elements, bool json, const std::string& command);

struct OffloadBenchOptions {
  int64_t warmup = 2;  // steps of each case before those that count
  int64_t steps = 5;
  bool json = false;
  std::string command;
};
/// The same model trained in turn as the memory tables of `cases` say, between two rounds without
/// any: step time and memory beside those, bytes moved, and how well copies and compute overlap
/// (the longer of the two alone over the step). `texts` are the cases for people.
ExitCode bench_offload(const RunConfig& config, const std::vector<std::string>& texts,
                       const std::vector<RunConfig>& cases, Runtime& runtime,
                       const OffloadBenchOptions& options);

}  // namespace ferry
