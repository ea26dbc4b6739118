#pragma once

// One list of fields per configuration struct. Reading TOML, printing, comparing, the generated
// documentation and the error messages all visit that list, so they cannot drift apart.
//
//   struct PageConfig {
//     int64_t tokens = 64;
//     template <class Visitor>
//     static void visit_fields(Visitor&& visit) {
//       visit(Field{.key = "tokens", .doc = "rows of a page", .range = at_least(1)},
//             &PageConfig::tokens);
//     }
//   };
//
// A nested struct is listed with Table instead of Field. Goals: no macros, no registration, no
// inheritance. Not a goal: unions, or reading anything but configuration.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ferry {

/// The numbers that a field accepts; for a list, what each element must be.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;

  bool contains(double value) const {
    return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
  }
  /// "at least 1", "above 0", "in [0, 1)"; empty if everything is allowed.
  std::string text() const;
};

inline Range at_least(double low) { return {.low = low}; }
inline Range above(double low) { return {.low = low, .low_open = true}; }
inline Range closed(double low, double high) { return {.low = low, .high = high}; }
inline Range half_open(double low, double high) {
  return {.low = low, .high = high, .high_open = true};
}

/// What is known of one value besides its name in C++ and its default, which is the member's.
struct Field {
  std::string_view key;
  std::string_view doc;                        // one sentence, with the unit
  std::vector<std::string_view> allowed = {};  // the legal strings of an enumeration
  Range range = {};                            // the legal numbers
  bool required = false;                       // has no default
  std::string_view zero = {};                  // what 0 (or false) stands for in a configuration
  std::string_view if_true = {};               // a string that may also be written true or false
  std::string_view word = {};                  // how an optional that is unset is written
  bool numbers = false;                        // a list of strings that also accepts numbers
};

/// A nested struct.
struct Table {
  std::string_view key;
  std::string_view doc;
};

namespace detail {
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
}  // namespace detail

template <class T>
inline constexpr bool is_optional = detail::IsOptional<std::remove_cv_t<T>>::value;
template <class T>
inline constexpr bool is_vector = detail::IsVector<std::remove_cv_t<T>>::value;

/// "integer", "number", "true or false", "string", "list of integers", ...
template <class T>
std::string type_name() {
  if constexpr (is_optional<T>) {
    return type_name<typename T::value_type>();
  } else if constexpr (is_vector<T>) {
    return "list of " + type_name<typename T::value_type>() + "s";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else {
    static_assert(std::is_same_v<T, std::string>, "a configuration field cannot have this type");
    return "string";
  }
}

/// The TOML text of a value: doubles in the shortest form that reads back to the same bits, strings
/// quoted and escaped. An unset optional gives the empty string.
std::string to_toml(bool value);
std::string to_toml(int64_t value);
std::string to_toml(double value);
std::string to_toml(const std::string& value);

template <class T>
std::string to_toml(const std::optional<T>& value) {
  return value ? to_toml(*value) : std::string();
}

template <class T>
std::string to_toml(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + to_toml(value);
  return text + "]";
}

/// The same as a configuration writes it: an optional that is unset by the field's word, if it has
/// one.
template <class T>
std::string to_toml(const Field& field, const T& value) {
  if constexpr (is_optional<T>) {
    if (!value && !field.word.empty()) return to_toml(std::string(field.word));
  }
  return to_toml(value);
}

/// Calls enter(path, Table) before each nested struct of `config` and visit(path, Field, value&)
/// for each value, in the order of the lists. A path is "moe.router.score". A struct's own values
/// should be listed before its tables, as TOML wants them printed in that order.
template <class Config, class Enter, class Visit>
void visit_values(Config& config, Enter&& enter, Visit&& visit, const std::string& prefix = "") {
  std::remove_const_t<Config>::visit_fields([&](const auto& field, auto member) {
    const std::string path = prefix + std::string(field.key);
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, Table>) {
      enter(path, field);
      visit_values(config.*member, enter, visit, path + ".");
    } else {
      visit(path, field, config.*member);
    }
  });
}

template <class Config, class Visit>
void visit_values(Config& config, Visit&& visit) {
  visit_values(
      config, [](const std::string&, const Table&) {}, visit);
}

/// Paths of the values in which two configurations differ.
template <class Config>
std::vector<std::string> differences(const Config& a, const Config& b) {
  std::vector<std::string> texts;
  visit_values(a, [&](const std::string&, const Field&, const auto& value) {
    texts.push_back(to_toml(value));
  });
  std::vector<std::string> paths;
  size_t i = 0;
  visit_values(b, [&](const std::string& path, const Field&, const auto& value) {
    if (to_toml(value) != texts[i++]) paths.push_back(path);
  });
  return paths;
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
/// string alignment).
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name` by edit distance, if it is near enough to be a slip of the pen:
/// at most a third of the longer name, and at least one edit is always allowed.
std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates);

}  // namespace ferry
