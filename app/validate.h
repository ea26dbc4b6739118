#pragma once

// Rules between the values of a configuration. A value alone is checked when it is read
// (config_file.h). Each file validate_SUBJECT.cpp holds the rules of one subject.

#include <cstdint>
#include <string>
#include <vector>

#include "app/config_error.h"
#include "app/run_config.h"

namespace ferry {

/// Every violation of a run of `config` on `ranks` ranks, ready to print; empty if it is legal.
std::vector<std::string> validate(const RunConfig& config, int64_t ranks);

/// As validate, with the keys that each violation is about.
std::vector<ConfigError> find_violations(const RunConfig& config, int64_t ranks);

/// A combination that is refused whatever the numbers are.
struct Exclusion {
  std::vector<std::string> keys;  // the first is the one to change
  bool (*applies)(const RunConfig& config);
  std::string what;
  std::string why;
  std::string fix;
};

/// Combinations of memory techniques and of MoE options that exclude each other.
const std::vector<Exclusion>& exclusions();

/// Legal features that this version does not have. A feature that arrives deletes its row.
const std::vector<Exclusion>& unsupported_features();

/// The rules of each subject.
void validate_model(const RunConfig& config, Violations& violations);
void validate_moe(const RunConfig& config, Violations& violations);
void validate_parallel(const RunConfig& config, int64_t ranks, Violations& violations);
void validate_layout(const RunConfig& config, Violations& violations);
void validate_training(const RunConfig& config, int64_t ranks, Violations& violations);
void validate_data(const RunConfig& config, Violations& violations);

}  // namespace ferry
