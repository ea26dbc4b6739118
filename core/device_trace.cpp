#include "core/device_trace.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>

namespace ferry {
namespace {

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? std::string(name.get()) : symbol;
}

void remove_all(std::string& text, const std::string& part) {
  for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
}

// Where the parenthesis that the text ends with was opened.
size_t last_parenthesis(const std::string& text) {
  int depth = 0;
  for (size_t i = text.size(); i-- > 0;) {
    if (text[i] == ')') ++depth;
    if (text[i] == '(' && --depth == 0) return i;
  }
  return text.size();
}

}  // namespace

std::string kernel_name(const std::string& symbol) {
  std::string name = demangled(symbol);
  if (name.ends_with(')')) name.erase(last_parenthesis(name));
  if (name.starts_with("void ")) name.erase(0, 5);
  for (const char* part : {"(anonymous namespace)::", "ferry::cuda::", "ferry::"})
    remove_all(name, part);
  return name;
}

DeviceActivity summarize(std::span<const DeviceInterval> intervals) {
  std::map<std::string, DeviceActivity::Work> by_name;
  std::vector<std::pair<uint64_t, uint64_t>> times;
  for (const DeviceInterval& interval : intervals) {
    DeviceActivity::Work& work = by_name[interval.name];
    ++work.calls;
    work.seconds += 1e-9 * static_cast<double>(interval.end_ns - interval.start_ns);
    times.emplace_back(interval.start_ns, interval.end_ns);
  }
  DeviceActivity activity;
  for (auto& [name, work] : by_name) {
    work.name = name;
    activity.work.push_back(std::move(work));
  }
  std::stable_sort(activity.work.begin(), activity.work.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  std::sort(times.begin(), times.end());
  uint64_t busy = 0, until = 0;
  for (const auto& [start, end] : times) {
    if (end <= until) continue;
    busy += end - std::max(start, until);
    until = end;
  }
  activity.busy_seconds = 1e-9 * static_cast<double>(busy);
  return activity;
}

}  // namespace ferry
