#pragma once

// What is wrong with a configuration. Errors are collected and shown all at once, each as
//
//   error: parallel.expert does not divide moe.experts
//     --> configs/a.toml:41:1   parallel.expert = 6
//     --> default               moe.experts = 64
//     why : 64 experts mod 6 = 4
//     try : parallel.expert = 4 or 8

#include <string>
#include <vector>

#include "app/run_config.h"

namespace ferry {

struct ConfigError {
  /// One place that the error points at.
  struct Place {
    Origin origin;
    std::string text;  // "parallel.expert = 6"
  };

  std::string what;
  std::vector<Place> places;
  std::string why;
  std::string fix;
  std::vector<std::string> keys;  // paths involved

  std::string text() const;
};

/// Collects the violations of rules between values.
class Violations {
 public:
  explicit Violations(const RunConfig& config) : config_(config) {}

  /// `keys` are the paths whose values break the rule; the first is the one to change.
  void add(std::vector<std::string> keys, std::string what, std::string why, std::string fix);

  const std::vector<ConfigError>& errors() const { return errors_; }

 private:
  const RunConfig& config_;
  std::vector<ConfigError> errors_;
};

/// Throws one Error(ExitCode::Usage) with the text of every error; returns if there is none.
void throw_config_errors(const std::vector<ConfigError>& errors);

}  // namespace ferry
