#include <toml++/toml.h>
#include <algorithm>
#include <string>

#include "app/config_file.h"
#include "core/fields.h"

namespace ferry {

namespace {

bool is_toml_value(const std::string& value) {
  try {
    const toml::table table = toml::parse("x = " + value);
    return table.size() == 1;
  } catch (const toml::parse_error&) {
    return false;
  }
}

}  // namespace

std::string override_to_toml(const std::string& value) {
  if (is_toml_value(value)) return value;
  if (value.empty() || (value[0] != '[' && value[0] != '{')) return to_toml(value);
  // Within brackets a word ends at a comma, a bracket or, as the key of an inline table, at "=".
  std::string text;
  for (size_t at = 0; at < value.size();) {
    const size_t end = std::min(value.find_first_of("[]{},=", at), value.size());
    const std::string word = value.substr(at, end - at);
    const size_t first = word.find_first_not_of(' ');
    const bool is_table_key = end < value.size() && value[end] == '=';
    if (first == std::string::npos || is_table_key || is_toml_value(word)) {
      text += word;
    } else {
      text += to_toml(word.substr(first, word.find_last_not_of(' ') - first + 1));
    }
    if (end < value.size()) text += value[end];
    at = end + 1;
  }
  return text;
}

}  // namespace ferry
