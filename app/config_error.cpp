#include "app/config_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ferry {

std::string ConfigError::text() const {
  size_t width = 0;
  for (const Place& place : places) width = std::max(width, place.origin.text().size());
  std::string text = "error: " + what;
  for (const Place& place : places) {
    text += fmt::format("\n  --> {:<{}}   {}", place.origin.text(), width, place.text);
  }
  text += "\n  why : " + why;
  text += "\n  try : " + fix;
  return text;
}

void Violations::add(std::vector<std::string> keys, std::string what, std::string why,
                     std::string fix) {
  ConfigError error{.what = std::move(what), .why = std::move(why), .fix = std::move(fix)};
  for (const std::string& key : keys) {
    const std::string value = value_text(config_, key);
    error.places.push_back(
        {config_.origin(key), value.empty() ? key + " is not set" : key + " = " + value});
  }
  error.keys = std::move(keys);
  errors_.push_back(std::move(error));
}

void throw_config_errors(const std::vector<ConfigError>& errors) {
  if (errors.empty()) return;
  std::string text;
  for (const ConfigError& error : errors) text += (text.empty() ? "" : "\n") + error.text();
  if (errors.size() > 1) text += fmt::format("\n{} errors in the configuration", errors.size());
  throw Error(ExitCode::Usage, text);
}

}  // namespace ferry
