#include "app/host_memory.h"

#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "app/gib.h"
#include "core/check.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

// The number in a file that holds one; none if the file is not there, or says "max".
std::optional<int64_t> number_in(const fs::path& path) {
  int64_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

// Of a file with lines "name number ...", as memory.stat and meminfo are.
std::optional<int64_t> number_of(const fs::path& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t number = 0;
    if (words >> key >> number && key == name) return number;
  }
  return std::nullopt;
}

// What the files of a control group are called.
struct Version {
  const char* limit;
  const char* used;
  const char* inactive_cache;
  const char* active_cache;
};
constexpr Version kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                            "total_active_file"};
constexpr Version kVersion2{"memory.max", "memory.current", "inactive_file", "active_file"};

// Of the group and those that it is in, up to `root`.
void consider_groups(HostMemory& least, const fs::path& root, const fs::path& group,
                     const Version& version) {
  fs::path directory = root / group.relative_path();
  for (;; directory = directory.parent_path()) {
    const auto limit = number_in(directory / version.limit);
    const auto used = number_in(directory / version.used);
    if (limit && used) {
      const fs::path stat = directory / "memory.stat";
      const int64_t cache = number_of(stat, version.inactive_cache).value_or(0) +
                            number_of(stat, version.active_cache).value_or(0);
      const int64_t free = std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cache));
      if (free < least.available) least = {free, (directory / version.limit).string()};
    }
    if (directory == root || directory == directory.root_path()) return;
  }
}

std::string plural(int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

HostMemory available_host_memory(const fs::path& proc, const fs::path& cgroup) {
  const fs::path meminfo = proc / "meminfo";
  const auto kib = number_of(meminfo, "MemAvailable:");
  CHECK(kib.has_value(), meminfo.string(), " does not say MemAvailable");
  HostMemory least{*kib * 1024, meminfo.string()};
  std::ifstream groups(proc / "self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) consider_groups(least, cgroup, group, kVersion2);
    if (("," + controllers + ",").find(",memory,") != std::string::npos)
      consider_groups(least, cgroup / "memory", group, kVersion1);
  }
  return least;
}

std::string host_memory_problem(const MemoryEstimate& one, int64_t bytes, int64_t num_ranks,
                                const HostMemory& host, const RunConfig& config) {
  if (bytes <= host.available) return "";
  const OptimizerBytes& optimizer = one.optimizer_bytes;
  const int64_t others = one.host + one.pageable - optimizer.host_state() -
                         optimizer.gradient_staging - optimizer.value_staging;
  const int64_t saves = one.save_staging + one.save_copies;
  std::string fix;
  const auto add = [&](const std::string& text) { fix += (fix.empty() ? "" : ", or ") + text; };
  if (saves > 0) add("checkpoint.async = false");
  if (one.save_copies > 0) add("a smaller checkpoint.copy_gib");
  if (optimizer.host_state() > 0) add("a smaller optimizer.offload.fraction");
  if (optimizer.gradient_staging > 0 && config.optimizer.offload.overlap_d2h_h2d)
    add("optimizer.offload.overlap_d2h_h2d = false");
  if (others > 0) add("less activation or layer offload");
  if (num_ranks > 1) add("fewer ranks per host");
  if (fix.empty() || num_ranks == 1) add("a host with more memory");
  const std::string whose =
      num_ranks == 1 ? "this rank needs"
                     : fmt::format("of {} on this host, this one needs", plural(num_ranks, "rank"));
  return fmt::format(
      "the host has too little memory: {:.2f} GiB are needed, {:.2f} GiB are available\n"
      "  --> {}\n"
      "  why : {} {:.2f} GiB for masters and moments, {:.2f} for gradients and {:.2f} for weights "
      "on "
      "their way, {:.2f} for activations and weights of layers, {:.2f} for saves beside training\n"
      "  try : {}",
      gib(bytes), gib(host.available), host.source, whose, gib(optimizer.host_state()),
      gib(optimizer.gradient_staging), gib(optimizer.value_staging), gib(others), gib(saves), fix);
}

void require_host_memory(const MemoryEstimate& own, const RunConfig& config,
                         const std::string& host_name, Control& control, const HostMemory& host) {
  const std::string what = "memory of hosts";
  const nlohmann::json need{{"host", host_name}, {"bytes", own.on_host()}};
  auto all = nlohmann::json::array();
  for (const std::string& rank : control.gather(need.dump(), 0, what))
    all.push_back(nlohmann::json::parse(rank));
  int64_t bytes = 0, num_ranks = 0;
  for (const auto& rank : nlohmann::json::parse(control.broadcast(all.dump(), 0, what))) {
    if (rank["host"] != host_name) continue;
    bytes += rank["bytes"].get<int64_t>();
    ++num_ranks;
  }
  const std::string problem = host_memory_problem(own, bytes, num_ranks, host, config);
  if (!problem.empty()) throw Error(ExitCode::Resource, "error: " + problem);
}

}  // namespace ferry
