#pragma once

// What validate says of the quick start with some values changed.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "app/config_file.h"
#include "app/validate.h"

namespace ferry::testing {

using Overrides = std::vector<std::string>;

/// The quick start, with the numbers that tests rely on whatever it is tuned to.
inline RunConfig quickstart(const Overrides& overrides) {
  Overrides all = {"run.steps=300", "optimizer.lr=2e-3", "optimizer.min_lr=2e-4",
                   "optimizer.warmup_steps=20"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_config(std::string(FERRY_SOURCE_DIR) + "/configs/quickstart.toml", all);
}

/// The violations without those of features that this version lacks.
inline std::vector<ConfigError> violations(const Overrides& overrides, int64_t ranks = 1) {
  std::vector<ConfigError> errors;
  for (ConfigError& error : find_violations(quickstart(overrides), ranks)) {
    if (error.what.find("is not in this version") == std::string::npos) errors.push_back(error);
  }
  return errors;
}

/// The violation that these overrides must lead to; why and fix are parts of it.
struct Case {
  Overrides overrides;
  std::string what;
  std::string why;
  std::string fix;
  int64_t ranks = 1;
};

inline void expect_each(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    std::string found;
    bool is_found = false;
    for (const ConfigError& error : violations(c.overrides, c.ranks)) {
      found += error.text() + "\n";
      is_found = is_found || (error.what == c.what && error.why.find(c.why) != std::string::npos &&
                              error.fix.find(c.fix) != std::string::npos);
    }
    EXPECT_TRUE(is_found) << "wanted " << c.what << "\n  why : " << c.why << "\n  try : " << c.fix
                          << "\nfound " << (found.empty() ? "nothing" : found);
  }
}

}  // namespace ferry::testing
