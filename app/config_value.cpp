#include "app/config_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace ferry {

namespace {

// The text of a value as a configuration writes it.
std::string full_text(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return to_toml(*text);
  if (const auto number = node.value_exact<double>()) return to_toml(*number);
  std::string text;
  if (const toml::array* array = node.as_array()) {
    for (const toml::node& element : *array)
      text += (text.empty() ? "" : ", ") + full_text(element);
    return "[" + text + "]";
  }
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, value] : *table) {
      text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key.str(), full_text(value));
    }
    return "{" + text + "}";
  }
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return out.str();
}

Refusal illegal_name(const std::string& value, const Field& field) {
  const std::vector<std::string> names(field.allowed.begin(), field.allowed.end());
  const std::optional<std::string> nearest = nearest_name(value, names);
  std::string legal;
  for (const std::string& name : names)
    legal += fmt::format("{}\"{}\"", legal.empty() ? "" : ", ", name);
  return {"illegal value", fmt::format("{} must be one of {}", field.key, legal),
          nearest ? fmt::format("\"{}\"", *nearest) : "one of these"};
}

// What a number must be; empty if it may be anything.
std::string legal_numbers(const Field& field) {
  const std::string range = field.range.text();
  if (range.empty() || field.word.empty()) return range;
  return fmt::format("{} or \"{}\"", range, field.word);
}

template <class T>
std::optional<Refusal> check_range(T value, const Field& field) {
  if (std::isfinite(static_cast<double>(value)) &&
      field.range.contains(static_cast<double>(value))) {
    return std::nullopt;
  }
  std::string legal = legal_numbers(field);
  if (legal.empty()) legal = "finite";
  const double nearest = std::clamp(static_cast<double>(value), field.range.low, field.range.high);
  const bool is_legal = std::isfinite(nearest) && field.range.contains(nearest);
  return Refusal{"illegal value", fmt::format("{} must be {}", field.key, legal),
                 is_legal ? to_toml(static_cast<T>(nearest)) : "a number " + legal};
}

}  // namespace

std::string node_text(const toml::node& node) {
  constexpr size_t kLongest = 60;
  const std::string text = full_text(node);
  return text.size() > kLongest ? text.substr(0, kLongest - 3) + "..." : text;
}

std::string_view kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "table";
    case toml::node_type::array:
      return "list";
    case toml::node_type::string:
      return "string";
    case toml::node_type::integer:
      return "integer";
    case toml::node_type::floating_point:
      return "number with a fraction";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::date:
      return "date";
    case toml::node_type::time:
      return "time";
    case toml::node_type::date_time:
      return "date and time";
    case toml::node_type::none:
      break;
  }
  return "nothing";
}

std::string with_article(std::string_view noun) {
  return fmt::format("{} {}", noun.starts_with('i') ? "an" : "a", noun);
}

Refusal wrong_type(const toml::node& node, const std::string& wanted) {
  Refusal refusal{
      "wrong type",
      fmt::format("it is {}, and must be {}", with_article(kind_of(node)), with_article(wanted)),
      "write " + with_article(wanted)};
  if (wanted == "true or false") {
    refusal.why = fmt::format("it is {}, and must be true or false", with_article(kind_of(node)));
    refusal.fix = "write true or false, without quotes";
  } else if (wanted == "string" && !node.is_table() && !node.is_array()) {
    refusal.fix = to_toml(full_text(node));
  } else if (wanted == "integer" && node.is_floating_point()) {
    refusal.why = "it is a number with a fraction or an exponent, and must be an integer";
    const double value = *node.value<double>();
    if (std::abs(value) < 1e15) refusal.fix = fmt::format("{:.0f}", value);
  }
  return refusal;
}

std::optional<Refusal> take(const toml::node& node, const Field&, bool& out) {
  if (!node.is_boolean()) return wrong_type(node, type_name<bool>());
  out = *node.value<bool>();
  return std::nullopt;
}

std::optional<Refusal> take(const toml::node& node, const Field& field, int64_t& out) {
  if (!node.is_integer()) return wrong_type(node, type_name<int64_t>());
  out = *node.value<int64_t>();
  return check_range(out, field);
}

std::optional<Refusal> take(const toml::node& node, const Field& field, double& out) {
  if (!node.is_number()) return wrong_type(node, type_name<double>());
  out = *node.value<double>();
  return check_range(out, field);
}

std::optional<Refusal> take(const toml::node& node, const Field& field, std::string& out) {
  if (node.is_boolean() && !field.if_true.empty()) {
    out = *node.value<bool>() ? std::string(field.if_true) : "none";
    return std::nullopt;
  }
  if (field.numbers && node.is_number()) {
    out = full_text(node);
    return std::nullopt;
  }
  if (!node.is_string()) return wrong_type(node, type_name<std::string>());
  out = *node.value<std::string>();
  const bool is_legal =
      field.allowed.empty() || std::count(field.allowed.begin(), field.allowed.end(), out) > 0;
  return is_legal ? std::nullopt : std::optional(illegal_name(out, field));
}

}  // namespace ferry
