#pragma once

// Reading a configuration: the TOML file, the files it extends, and overrides of the command line.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/config_error.h"
#include "app/run_config.h"

namespace ferry {

/// What could be read, and what could not.
struct ConfigReading {
  RunConfig config;
  std::vector<ConfigError> errors;
};

/// Reads `path` and then the overrides ("table.key=value"). Unknown keys, wrong types, illegal
/// values and missing keys are collected, each with its place. Values that follow from others are
/// filled in. Throws Error(ExitCode::Usage) if a file cannot be read or is not TOML.
ConfigReading read_config(const std::string& path, const std::vector<std::string>& overrides);

/// read_config; throws one Error(ExitCode::Usage) that lists every error.
RunConfig load_config(const std::string& path, const std::vector<std::string>& overrides);

/// read_config and validate(config, ranks); throws one Error(ExitCode::Usage) that lists every
/// error of both. Ranks of 0 stand for the fewest that fit. A rule between values is not reported
/// where one of them could not be read.
RunConfig load_valid_config(const std::string& path, const std::vector<std::string>& overrides,
                            int64_t ranks);

/// The TOML text that an override's value stands for: itself if it is TOML; a bare word, alone or
/// in a list, becomes a string.
std::string override_to_toml(const std::string& value);

/// What Megatron-LM or the config.json of a Hugging Face model calls a key, and our path of it.
struct ForeignName {
  std::string_view name;
  std::string_view path;
};
std::span<const ForeignName> foreign_names();

}  // namespace ferry
