#pragma once

// The directory of a run: what is in it, and whether a start may use it.
//
//   resolved.toml command.txt env.json grid.txt log/run.log metrics.jsonl events.jsonl ckpt/
//   offload_summary.txt

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "core/comm/mesh.h"

namespace ferry {

/// Takes the directory, and makes log/ in it. Refuses, before anything is written, to start anew
/// where an earlier run left something: Error(ExitCode::Usage) says what it found and offers
/// run.fresh=true or another run.dir. With `fresh` the old directory is renamed aside, never
/// deleted; returns its new name or "". `continues`: the start goes on from a checkpoint's step.
std::string prepare_run_directory(const std::filesystem::path& dir, bool fresh, bool continues);

/// Error(ExitCode::Usage) if a start that is at `step` would leave checkpoints of later steps in
/// the directory, which resume=auto would then take for its own.
void refuse_other_branch(const std::filesystem::path& dir, int64_t step, bool fresh);

/// True if the directory holds metrics or checkpoints, whole or not, of an earlier run. What a
/// start writes before its first step does not count.
bool holds_a_run(const std::filesystem::path& dir);

/// True if `path` is `dir` or anything under it, after links are followed.
bool is_inside(const std::filesystem::path& path, const std::filesystem::path& dir);

/// Appends an error to log/rank-NNNN.log. Does not fail: the error itself is what is to be seen.
void log_error(const std::filesystem::path& dir, int rank, const std::string& text);

/// Writes offload_summary.txt. Error(ExitCode::Storage) if that fails.
void write_offload_summary(const std::filesystem::path& dir, const std::string& text);

/// Writes what describes the start. `bindings`: a line per rank, with its host, device and CPUs.
void describe_run(const std::filesystem::path& dir, const RunConfig& config, const Mesh& mesh,
                  const std::vector<std::string>& bindings, const std::string& command_line,
                  const std::string& backend);

}  // namespace ferry
