#include "app/config_file.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "app/config_value.h"
#include "core/check.h"

namespace ferry {

namespace {

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
