#include <algorithm>
#include <set>
#include <utility>

#include "app/config_file.h"
#include "app/validate.h"

namespace ferry {

RunConfig load_config(const std::string& path, const std::vector<std::string>& overrides) {
  ConfigReading reading = read_config(path, overrides);
  throw_config_errors(reading.errors);
  return std::move(reading.config);
}

RunConfig load_valid_config(const std::string& path, const std::vector<std::string>& overrides,
                            int64_t ranks) {
  ConfigReading reading = read_config(path, overrides);
  if (ranks == 0) ranks = reading.config.fewest_ranks();
  std::set<std::string> unread;
  for (const ConfigError& error : reading.errors)
    unread.insert(error.keys.begin(), error.keys.end());
  for (ConfigError& violation : find_violations(reading.config, ranks)) {
    const bool is_known =
        std::none_of(violation.keys.begin(), violation.keys.end(),
                     [&](const std::string& key) { return unread.count(key) > 0; });
    if (is_known) reading.errors.push_back(std::move(violation));
  }
  throw_config_errors(reading.errors);
  return std::move(reading.config);
}

}  // namespace ferry
