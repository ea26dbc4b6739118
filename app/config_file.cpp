#include "app/config_file.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include "core/check.h"

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

// The same, cut to a length that fits a message.
std::string node_text(const toml::node& node) {
  constexpr size_t kLongest = 60;
  const std::string text = full_text(node);
  return text.size() > kLongest ? text.substr(0, kLongest - 3) + "..." : text;
}

std::string with_article(std::string_view noun) {
  return fmt::format("{} {}", noun.starts_with('i') ? "an" : "a", noun);
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

// Why a value cannot be taken, and what to write instead.
struct Refusal {
  std::string what;
  std::string why;
  std::string fix;
};

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

Refusal illegal_name(const std::string& value, const Field& field) {
  const std::vector<std::string> names(field.allowed.begin(), field.allowed.end());
  const std::optional<std::string> nearest = nearest_name(value, names);
  std::string legal;
  for (const std::string& name : names)
    legal += fmt::format("{}\"{}\"", legal.empty() ? "" : ", ", name);
  return {"illegal value", fmt::format("{} must be one of {}", field.key, legal),
          nearest ? fmt::format("\"{}\"", *nearest) : "one of these"};
}

template <class T>
std::optional<Refusal> check_range(T value, const Field& field) {
  if (std::isfinite(static_cast<double>(value)) &&
      field.range.contains(static_cast<double>(value))) {
    return std::nullopt;
  }
  std::string legal = field.range.text();
  if (legal.empty()) legal = "finite";
  const double nearest = std::clamp(static_cast<double>(value), field.range.low, field.range.high);
  const bool is_legal = std::isfinite(nearest) && field.range.contains(nearest);
  return Refusal{"illegal value", fmt::format("{} must be {}", field.key, legal),
                 is_legal ? to_toml(static_cast<T>(nearest)) : "a number " + legal};
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

template <class T>
std::optional<Refusal> take(const toml::node& node, const Field& field, std::optional<T>& out) {
  return take(node, field, out.emplace());
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

// Every legal path, for suggestions.
std::vector<std::string> all_paths() {
  std::vector<std::string> paths;
  const RunConfig defaults;
  visit_values(
      defaults, [&](const std::string& path, const Table&) { paths.push_back(path); },
      [&](const std::string& path, const Field&, const auto&) { paths.push_back(path); });
  return paths;
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

class Reader {
 public:
  explicit Reader(ConfigReading& reading) : reading_(reading) {}

  void read_file(const std::string& path, std::vector<std::string> chain);
  void read_override(const std::string& text);
  void require_keys(const std::string& file);

 private:
  template <class Config>
  void read_table(const toml::table& table, Config& config, const std::string& prefix);
  void report(const std::string& path, const std::string& shown, const toml::source_region& source,
              Refusal refusal);
  void unknown_key(const std::string& path, const toml::node& node, const toml::key& key,
                   const std::vector<std::string>& siblings);
  Origin origin_of(const toml::source_region& source) const;

  ConfigReading& reading_;
  std::string file_;      // being read; empty for the command line
  std::string override_;  // being read from the command line
};

Origin Reader::origin_of(const toml::source_region& source) const {
  if (file_.empty()) return {.kind = Origin::Kind::CommandLine};
  return {.kind = Origin::Kind::File,
          .file = file_,
          .line = static_cast<int64_t>(source.begin.line),
          .column = static_cast<int64_t>(source.begin.column)};
}

void Reader::report(const std::string& path, const std::string& shown,
                    const toml::source_region& source, Refusal refusal) {
  reading_.errors.push_back({.what = std::move(refusal.what),
                             .places = {{origin_of(source), file_.empty() ? override_ : shown}},
                             .why = std::move(refusal.why),
                             .fix = std::move(refusal.fix),
                             .keys = {path}});
}

void Reader::unknown_key(const std::string& path, const toml::node& node, const toml::key& key,
                         const std::vector<std::string>& siblings) {
  const std::string name = last_name(path);
  const std::string prefix = path.substr(0, path.size() - name.size());
  std::optional<std::string> nearest = nearest_name(name, siblings);
  if (nearest) nearest = prefix + *nearest;
  for (const ForeignName& foreign : foreign_names()) {
    if (foreign.name == name) nearest = foreign.path;
  }
  // Perhaps the key is right and the table is wrong; the most similar table is the likeliest.
  int best = std::numeric_limits<int>::max();
  for (const std::string& legal : nearest ? std::vector<std::string>() : all_paths()) {
    if (last_name(legal) != name || edit_distance(legal, path) >= best) continue;
    best = edit_distance(legal, path);
    nearest = legal;
  }
  std::string legal;
  for (const std::string& sibling : siblings) legal += (legal.empty() ? "" : ", ") + sibling;
  const std::string where =
      prefix.empty() ? "the top level" : "[" + prefix.substr(0, prefix.size() - 1) + "]";
  report(path, node.is_table() ? "[" + path + "]" : path + " = " + node_text(node), key.source(),
         {"unknown key", fmt::format("{} has: {}", where, legal),
          nearest ? *nearest : "remove it, or take one of these"});
  if (nearest) reading_.errors.back().keys.push_back(*nearest);
}

template <class Config>
void Reader::read_table(const toml::table& table, Config& config, const std::string& prefix) {
  std::vector<std::string> known;
  Config::visit_fields([&](const auto& field, auto member) {
    known.emplace_back(field.key);
    const auto found = table.find(field.key);
    if (found == table.end()) return;
    const auto& [key, node] = *found;
    const std::string path = prefix + std::string(field.key);
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, Table>) {
      if (const toml::table* nested = node.as_table()) {
        read_table(*nested, config.*member, path + ".");
      } else {
        report(path, path + " = " + node_text(node), key.source(),
               {"wrong type",
                fmt::format("{} is a table of keys, not {}", path, with_article(kind_of(node))),
                fmt::format("[{}] and its keys below it", path)});
      }
    } else {
      auto value = config.*member;
      if (std::optional<Refusal> refusal = take(node, field, value)) {
        report(path, path + " = " + node_text(node), key.source(), std::move(*refusal));
      } else {
        config.*member = std::move(value);
      }
      reading_.config.origins[path] = origin_of(key.source());
    }
  });
  for (const auto& [key, node] : table) {
    if (prefix.empty() && !file_.empty() && key.str() == "extends") continue;
    if (std::count(known.begin(), known.end(), key.str()) > 0) continue;
    unknown_key(prefix + std::string(key.str()), node, key, known);
  }
}

[[noreturn]] void fail_file(const std::string& place, const std::string& what,
                            const std::string& why, const std::string& fix) {
  fail(ExitCode::Usage, "error: ", what, "\n  --> ", place, "\n  why : ", why, "\n  try : ", fix);
}

void Reader::read_file(const std::string& path, std::vector<std::string> chain) {
  const std::string canonical = std::filesystem::weakly_canonical(path).string();
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) {
    fail_file(chain.empty() ? path : chain.back(), "cannot read the configuration " + path,
              std::filesystem::exists(path, status) ? "it is not a file" : "there is no such file",
              chain.empty() ? "a path to a .toml file, as in configs/quickstart.toml"
                            : "a path relative to the file that extends it");
  }
  if (std::count(chain.begin(), chain.end(), canonical) > 0) {
    fail_file(path, "a configuration extends itself", "extends leads back to " + path,
              "remove one of the extends");
  }
  chain.push_back(canonical);
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    fail_file(fmt::format("{}:{}:{}", path, error.source().begin.line, error.source().begin.column),
              "not a TOML file", std::string(error.description()),
              "correct that line; strings need quotes, lists brackets, tables [names]");
  }
  if (const auto extends = table.find("extends"); extends != table.end()) {
    const auto& [key, node] = *extends;
    if (const auto base = node.value_exact<std::string>()) {
      read_file((std::filesystem::path(path).parent_path() / *base).string(), chain);
    } else {
      file_ = path;
      report("extends", "extends = " + node_text(node), key.source(), wrong_type(node, "string"));
    }
  }
  file_ = path;
  const size_t num_before = reading_.errors.size();
  read_table(table, reading_.config, "");
  std::stable_sort(reading_.errors.begin() + static_cast<std::ptrdiff_t>(num_before),
                   reading_.errors.end(), [](const ConfigError& a, const ConfigError& b) {
                     const Origin& x = a.places[0].origin;
                     const Origin& y = b.places[0].origin;
                     return std::pair(x.line, x.column) < std::pair(y.line, y.column);
                   });
}

void Reader::read_override(const std::string& text) {
  file_.clear();
  override_ = text;
  const size_t equals = text.find('=');
  const auto is_key = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
  };
  toml::table table;
  try {
    if (equals == std::string::npos || equals == 0 ||
        !std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(equals), is_key)) {
      throw Error(ExitCode::Usage, "it is not of the form table.key=value");
    }
    table = toml::parse(text.substr(0, equals) + " = " + override_to_toml(text.substr(equals + 1)));
  } catch (const std::exception& error) {
    const auto* parse_error = dynamic_cast<const toml::parse_error*>(&error);
    report("", "", {},
           {"cannot read an override",
            parse_error ? std::string(parse_error->description()) : error.what(),
            "table.key=value, as in optimizer.lr=3e-4"});
    return;
  }
  read_table(table, reading_.config, "");
}

void Reader::require_keys(const std::string& file) {
  visit_values(reading_.config, [&](const std::string& path, const Field& field, const auto&) {
    if (!field.required || reading_.config.origins.count(path) > 0) return;
    for (const ConfigError& error : reading_.errors) {  // a misspelt key is not missing as well
      if (std::count(error.keys.begin(), error.keys.end(), path) > 0) return;
    }
    reading_.errors.push_back(
        {.what = "missing key",
         .places = {{{.kind = Origin::Kind::File, .file = file}, path + " is not set"}},
         .why = fmt::format("{} has no default: {}", path, field.doc),
         .fix = fmt::format("set {} in the file or on the command line", path),
         .keys = {path}});
  });
}

}  // namespace

ConfigReading read_config(const std::string& path, const std::vector<std::string>& overrides) {
  ConfigReading reading;
  Reader reader(reading);
  reader.read_file(path, {});
  for (const std::string& text : overrides) reader.read_override(text);
  reader.require_keys(path);
  derive_run_defaults(reading.config, path);
  return reading;
}

}  // namespace ferry
