// Rules between the keys of [data]. Whether files exist is found out where they are opened.

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "app/validate.h"

namespace ferry {

namespace {

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Either prefixes only, or weight, prefix, weight, prefix, ...
void validate_blend(const std::string& key, const std::vector<std::string>& blend,
                    Violations& violations) {
  size_t num_weights = 0;
  double sum = 0;
  bool alternates = blend.size() % 2 == 0;
  bool negative = false;
  for (size_t i = 0; i < blend.size(); ++i) {
    const std::optional<double> weight = parse_number(blend[i]);
    if (weight.has_value() != (i % 2 == 0)) alternates = false;
    if (!weight) continue;
    ++num_weights;
    sum += *weight;
    negative = negative || !(*weight >= 0);
  }
  if (num_weights == 0) return;
  if (!alternates) {
    violations.add({key}, key + " mixes paths and numbers",
                   fmt::format("{} numbers among {} elements, not one before each path",
                               num_weights, blend.size()),
                   "[0.7, \"a\", 0.3, \"b\"], or paths only");
  } else if (negative || !(sum > 0)) {
    violations.add({key}, key + " has weights that cannot be used",
                   "weights are at least 0 and their sum above 0", "[0.7, \"a\", 0.3, \"b\"]");
  }
}

bool is_split(const std::string& text) {
  double sum = 0;
  size_t num_parts = 0;
  for (size_t at = 0; at <= text.size(); ++num_parts) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::optional<double> part = parse_number(std::string_view(text).substr(at, comma - at));
    if (!part || !(*part >= 0)) return false;
    sum += *part;
    at = comma + 1;
  }
  return num_parts <= 3 && sum > 0;
}

}  // namespace

void validate_data(const RunConfig& config, Violations& violations) {
  const DataTable& data = config.data;
  validate_blend("data.train", data.train, violations);
  validate_blend("data.valid", data.valid, violations);
  if (!data.split.empty() && !is_split(data.split)) {
    violations.add({"data.split"}, "data.split cannot be read",
                   "it is the relative sizes of the training, validation and test parts",
                   "\"969,30,1\"");
  }
  if (!data.split.empty() && !data.valid.empty()) {
    violations.add({"data.split", "data.valid"}, "data.split and data.valid together",
                   "both say which tokens are for validation", "remove one of them");
  }
  if (data.kind == "synthetic") return;
  if (data.train.empty()) {
    violations.add({"data.train", "data.kind"}, "no training data", "data.train is empty",
                   "data.train = [\"PREFIX\"] from ferry data build, or data.kind = synthetic");
  }
  if (config.run.eval_every > 0 && data.valid.empty() && data.split.empty()) {
    violations.add({"run.eval_every", "data.valid", "data.split"},
                   "evaluation without validation data", "neither data.valid nor data.split is set",
                   "set one of them, or run.eval_every = 0");
  }
}

}  // namespace ferry
