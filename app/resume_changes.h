#pragma once

// A run that goes on from a checkpoint with another configuration than the checkpoint's: every
// setting that differs and matters is shown, and one that would change the numbers is refused
// unless checkpoint.allow_changes names it. So nothing changes without a word.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/run_config.h"

namespace ferry {

/// What it means that a setting changes.
enum class ChangeClass {
  Numbers,  // other losses and weights: refused unless allowed
  Data,     // other samples, refused unless allowed; but not if the fingerprint of the data is the
            // same: then only their place changed, or a part of the order that is not used
  Layout,   // the same numbers up to rounding: shown
  Free,     // no other numbers at all: not shown
};

/// The class of a setting; none if nobody has given it one.
std::optional<ChangeClass> change_class(const std::string& key);

struct ConfigChange {
  std::string key;
  std::string before;  // TOML; in the checkpoint
  std::string now;     // in this run
  bool needs_permission = false;
};

/// What a checkpoint says of the run that wrote it.
struct CheckpointSettings {
  std::string name;    // its directory, for messages
  std::string config;  // TOML
  int64_t step = 0;
  int64_t samples = 0;
};

/// The settings that differ, other than Free ones, in the order of the configuration. `ranks`: of
/// this run; `same_data`: its data have the fingerprint that the checkpoint records. Error(Storage)
/// if the configuration of the checkpoint is no TOML.
std::vector<ConfigChange> changes_on_resume(const CheckpointSettings& checkpoint,
                                            const RunConfig& now, int64_t ranks, bool same_data);

/// Whether one of `allowed` (checkpoint.allow_changes) is the key, a table that it is in, or "all".
bool is_allowed_change(const std::string& key, std::span<const std::string> allowed);

/// Lines for the banner, each after a newline: three columns, a row for each change; nothing if
/// there is none. Error(Usage), with the same table and how to allow them, if one needs a
/// permission that it does not have.
std::string describe_changes(const CheckpointSettings& checkpoint,
                             std::span<const ConfigChange> changes,
                             std::span<const std::string> allowed);

/// Whether a change among these gives other samples, or the same ones in another order.
bool changes_samples(std::span<const ConfigChange> changes);

}  // namespace ferry
