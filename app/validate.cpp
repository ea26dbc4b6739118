#include "app/validate.h"

#include <algorithm>
#include <utility>

namespace ferry {

namespace {

void apply(const std::vector<Exclusion>& table, const RunConfig& config, Violations& violations) {
  for (const Exclusion& row : table) {
    if (row.applies(config)) violations.add(row.keys, row.what, row.why, row.fix);
  }
}

}  // namespace

std::vector<ConfigError> find_violations(const RunConfig& config, int64_t ranks) {
  Violations violations(config);
  validate_model(config, violations);
  validate_moe(config, violations);
  validate_parallel(config, ranks, violations);
  validate_layout(config, violations);
  validate_training(config, ranks, violations);
  validate_data(config, violations);
  apply(exclusions(), config, violations);
  apply(unsupported_features(), config, violations);
  return violations.errors();
}

std::vector<std::string> validate(const RunConfig& config, int64_t ranks) {
  std::vector<std::string> texts;
  for (const ConfigError& error : find_violations(config, ranks)) texts.push_back(error.text());
  return texts;
}

}  // namespace ferry
