#pragma once

// The directory of a run: what is in it, and whether a start may use it.
//
//   resolved.toml command.txt env.json grid.txt log/run.log metrics.jsonl events.jsonl ckpt/

#include <filesystem>
#include <string>

#include "app/run_config.h"
#include "core/comm/mesh.h"

namespace ferry {

/// Refuses, before anything is written, to start from scratch where an earlier run left something:
/// Error(ExitCode::Usage) says what it found and offers run.fresh=true or another run.dir.
/// With `fresh` the old directory is renamed aside, never deleted; returns its new name or "".
std::string prepare_run_directory(const std::filesystem::path& dir, bool fresh, bool resuming);

/// True if the directory holds anything of an earlier run.
bool holds_a_run(const std::filesystem::path& dir);

/// Writes what describes the start.
void describe_run(const std::filesystem::path& dir, const RunConfig& config, const Mesh& mesh,
                  const std::string& command_line, const std::string& backend);

}  // namespace ferry
