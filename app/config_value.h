#pragma once

// One value of a TOML file: what it may be, and the text of it in messages.

#include <fmt/format.h>

#include <toml++/toml.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace ferry {

/// The text of a value as a configuration writes it, cut to a length that fits a message.
std::string node_text(const toml::node& node);
/// "table", "number with a fraction", ...
std::string_view kind_of(const toml::node& node);
/// "an integer", "a table".
std::string with_article(std::string_view noun);

/// Why a value cannot be taken, and what to write instead.
struct Refusal {
  std::string what;
  std::string why;
  std::string fix;
};
/// `wanted` as type_name() has it.
Refusal wrong_type(const toml::node& node, const std::string& wanted);

/// Sets `out` from a value if the field allows it; else says why not, and `out` is of no use.
std::optional<Refusal> take(const toml::node& node, const Field& field, bool& out);
std::optional<Refusal> take(const toml::node& node, const Field& field, int64_t& out);
std::optional<Refusal> take(const toml::node& node, const Field& field, double& out);
std::optional<Refusal> take(const toml::node& node, const Field& field, std::string& out);

template <class T>
std::optional<Refusal> take(const toml::node& node, const Field& field, std::optional<T>& out) {
  if (field.word.empty()) return take(node, field, out.emplace());
  const std::optional<std::string> text = node.value_exact<std::string>();
  if (text == field.word) {
    out.reset();
    return std::nullopt;
  }
  std::optional<Refusal> refusal = take(node, field, out.emplace());
  if (refusal && refusal->what == "wrong type") {
    const std::vector<std::string> words{std::string(field.word)};
    refusal = wrong_type(node, fmt::format("{} or \"{}\"", type_name<T>(), field.word));
    if (text && nearest_name(*text, words)) refusal->fix = to_toml(words[0]);
  }
  return refusal;
}

template <class T>
std::optional<Refusal> take(const toml::node& node, const Field& field, std::vector<T>& out) {
  out.clear();
  const toml::array* array = node.as_array();
  if (array == nullptr) {  // a single value stands for a list of one
    std::optional<Refusal> refusal = take(node, field, out.emplace_back());
    if (refusal && refusal->what == "wrong type")
      return wrong_type(node, type_name<std::vector<T>>());
    return refusal;
  }
  for (const toml::node& element : *array) {
    T value{};
    if (std::optional<Refusal> refusal = take(element, field, value)) {
      refusal->why = fmt::format("element {}: {}", node_text(element), refusal->why);
      return refusal;
    }
    out.push_back(std::move(value));
  }
  return std::nullopt;
}

}  // namespace ferry
