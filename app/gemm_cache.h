#pragma once

// The file of run.gemm_cache: the cuBLASLt algorithms of dense products that were measured, so that
// the next process starts with them.
//
//   {"format": 1, "gpu": "NVIDIA H200", "cublas": "13.1.0", "driver for cuda": "13.0",
//    "products": {KIND: {"algorithm": 128 hex digits, "us": 12.3, "heuristic_us": 13.1}, ...}}

#include <filesystem>
#include <functional>
#include <string>

#include "app/run_config.h"
#include "core/comm/control.h"
#include "core/device.h"
#include "core/ops/gemm_tuning.h"

namespace ferry {

/// What measured algorithms depend on, and a note for people.
struct GemmPlatform {
  std::string gpu;     // model
  std::string cublas;  // version
  std::string driver;  // not compared: it has no part in the choice of a kernel
};

/// That of a GPU.
GemmPlatform gemm_platform(const Device& device);

struct GemmCache {
  GemmMeasurements products;
  bool found = false;   // the file is there
  std::string problem;  // why the file was not used, or empty
};

/// The contents of the file. One that is missing, damaged, or of another GPU or cuBLAS gives
/// nothing but `problem`. Error(ExitCode::Storage) if it is there and cannot be read.
GemmCache read_gemm_cache(const std::filesystem::path& path, const GemmPlatform& platform);

/// Adds one product to the file, or replaces it, and keeps the others that fit the platform. Any
/// number of processes may do this at once, under a lock on PATH.lock; the file is replaced as a
/// whole. Error(ExitCode::Storage).
void add_to_gemm_cache(const std::filesystem::path& path, const GemmPlatform& platform,
                       const std::string& kind, const GemmMeasurement& measurement);

/// What a process does with products that are not in its file. A deterministic run measures none:
/// its bits may not depend on how long something took. Nor does one of several ranks take what it
/// measures, since products that ranks repeat would differ; it may record that for a later start
/// (`may_record`: a benchmark; training would go on with other numbers after a restart).
UnknownGemm unknown_gemms(bool deterministic, int ranks, bool may_record);

/// What rank 0 finds in its file, on all ranks, so that equal products have equal bits on all GPUs
/// of one model. With UnknownGemm::Heuristic the file must be there and fit, else
/// Error(ExitCode::Usage); otherwise it must be possible to write it, else
/// Error(ExitCode::Storage). The same error on all ranks. Collective.
GemmCache agree_on_gemm_cache(const std::filesystem::path& path, const GemmPlatform& platform,
                              UnknownGemm unknown, Control& control);

/// "! NOTICE" on stderr.
void notice_on_stderr(const std::string& notice);

/// Sets core/ops/gemm_tuning.h for this process by that, as run.gemm_cache and run.deterministic
/// have it; without a file the heuristic chooses. Every command that multiplies calls it before its
/// first product. Rank 0 says if a file is there that does not fit and will be replaced. On the CPU
/// it does nothing. Collective.
void open_gemm_cache(const RunConfig& config, bool may_record, const Device& device,
                     Control& control,
                     const std::function<void(const std::string&)>& say = notice_on_stderr);

}  // namespace ferry
