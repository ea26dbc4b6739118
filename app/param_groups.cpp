#include "app/param_groups.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "app/console.h"
#include "checkpoint/file_system.h"

namespace ferry {
namespace {

using nlohmann::ordered_json;

struct Side {
  int64_t parameters = 0;
  int64_t elements = 0;
  std::string text(const std::string& unit) const {
    const std::string sizes = count_text(static_cast<double>(elements));
    if (unit.empty()) return fmt::format("{} ({})", parameters, sizes);
    return fmt::format("{} {}{} ({} elements)", parameters, unit, parameters == 1 ? "" : "s",
                       sizes);
  }
};

struct Split {
  Side host, device;

  void add(const OptimizerPlace& place) {
    Side& side = place.on_host ? host : device;
    ++side.parameters;
    side.elements += place.elements;
  }
  std::string text(const std::string& unit) const {
    if (host.parameters == 0) return device.text(unit) + " on the device";
    if (device.parameters == 0) return host.text(unit) + " on the host";
    return host.text(unit) + " on the host, " + device.text("") + " on the device";
  }
};

int group_of(const OptimizerPlace& place) { return (place.expert ? 2 : 0) + (place.decay ? 0 : 1); }

// [name, group, elements, elements on the host] of what a rank updates.
std::string rank_text(const std::vector<OptimizerPlace>& places) {
  auto json = nlohmann::json::array();
  for (const OptimizerPlace& place : places)
    if (place.elements > 0)
      json.push_back(
          {place.name, group_of(place), place.elements, place.on_host ? place.elements : 0});
  return json.dump();
}

struct Total {
  int group = 0;
  int64_t elements = 0;
  int64_t host_elements = 0;

  std::string place() const {
    if (host_elements == 0) return "device";
    return host_elements == elements ? "host" : "both";
  }
};

ordered_json groups_json(const std::vector<std::pair<std::string, Total>>& parameters) {
  struct Group {
    int64_t parameters = 0, on_host = 0, elements = 0, host_elements = 0;
  };
  std::map<int, Group> groups;
  for (const auto& [name, total] : parameters) {
    Group& group = groups[total.group];
    ++group.parameters;
    group.on_host += total.host_elements > 0 ? 1 : 0;
    group.elements += total.elements;
    group.host_elements += total.host_elements;
  }
  ordered_json json = ordered_json::array();
  for (const auto& [id, group] : groups)
    json.push_back({{"id", id},
                    {"kind", id < 2 ? "dense" : "expert"},
                    {"decay", id % 2 == 0},
                    {"parameters", group.parameters},
                    {"on_host", group.on_host},
                    {"elements", group.elements},
                    {"host_elements", group.host_elements}});
  return json;
}

// In the order of the ranks, and on each in the order of the model.
std::vector<std::pair<std::string, Total>> sum_over_ranks(const std::vector<std::string>& ranks) {
  std::vector<std::pair<std::string, Total>> parameters;
  std::map<std::string, size_t> index;
  for (const std::string& rank : ranks) {
    for (const auto& part : nlohmann::json::parse(rank)) {
      const std::string name = part[0];
      const auto [found, is_new] = index.emplace(name, parameters.size());
      if (is_new) parameters.push_back({name, {.group = part[1]}});
      Total& total = parameters[found->second].second;
      total.elements += part[2].get<int64_t>();
      total.host_elements += part[3].get<int64_t>();
    }
  }
  return parameters;
}

// A reader finds the old file or the new one.
void replace_file(const Path& path, const std::string& text) {
  FileSystem& file_system = posix_file_system();
  Path next = path;
  next += ".next";
  if (file_system.exists(next)) file_system.remove_file(next);
  write_text(file_system, next, text);
  file_system.rename(next, path);
  const Path parent = path.parent_path();
  file_system.sync_directory(parent.empty() ? Path(".") : parent);
}

}  // namespace

std::string optimizer_places_text(const std::vector<OptimizerPlace>& places) {
  Split all;
  std::map<bool, Split> kinds;
  for (const OptimizerPlace& place : places) {
    if (place.elements == 0) continue;
    all.add(place);
    kinds[place.expert].add(place);
  }
  std::string text = "optimizer: " + all.text("parameter");
  if (all.host.parameters == 0 || kinds.size() < 2) return text;
  return text + " | dense " + kinds[false].text("") + " | experts " + kinds[true].text("");
}

void write_param_groups(const std::string& path, double fraction,
                        const std::vector<OptimizerPlace>& places, Control& control) {
  const std::vector<std::string> ranks =
      control.gather(rank_text(places), 0, "places of optimizer state");
  if (control.rank() != 0) return;
  const std::vector<std::pair<std::string, Total>> parameters = sum_over_ranks(ranks);
  ordered_json json;
  json["fraction"] = fraction;
  json["groups"] = groups_json(parameters);
  ordered_json& by_name = json["parameters"] = ordered_json::object();
  for (const auto& [name, total] : parameters)
    by_name[name] = {{"group", total.group},
                     {"place", total.place()},
                     {"elements", total.elements},
                     {"host_elements", total.host_elements}};
  replace_file(path, json.dump(2) + "\n");
}

}  // namespace ferry
