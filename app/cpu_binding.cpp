#include "app/cpu_binding.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "core/check.h"

namespace ferry {
namespace {

// Above the largest number of CPUs that a kernel is built for.
constexpr int kMaxCpus = 8192;

std::string first_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// A set of CPUs of any size, as the system calls want it.
struct CpuSet {
  static constexpr size_t kBytes = CPU_ALLOC_SIZE(kMaxCpus);
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set{CPU_ALLOC(kMaxCpus),
                                                       [](cpu_set_t* set) { CPU_FREE(set); }};
  CpuSet() {
    CHECK(set != nullptr, "no memory for a set of CPUs");
    CPU_ZERO_S(kBytes, set.get());
  }
};

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.find_last_not_of(" \n") + 1;
  const auto number = [&] {
    int cpu = -1;
    const auto [next, error] = std::from_chars(at, end, cpu);
    CHECK(error == std::errc() && cpu >= 0 && cpu < kMaxCpus, "'", text, "' is no list of CPUs");
    at = next;
    return cpu;
  };
  while (at != end) {
    const int first = number();
    const int last = at != end && *at == '-' ? (++at, number()) : first;
    CHECK(first <= last && (at == end || (*at == ',' && at + 1 != end)), "'", text,
          "' is no list of CPUs");
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (at != end) ++at;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += concat(text.empty() ? "" : ",", cpus[i]);
    if (end - i > 1) text += concat("-", cpus[end - 1]);
    i = end;
  }
  return text;
}

std::vector<int> nearest_cpus(const std::vector<int>& allowed, const std::vector<int>& near) {
  std::vector<int> both;
  std::set_intersection(allowed.begin(), allowed.end(), near.begin(), near.end(),
                        std::back_inserter(both));
  return both.empty() ? allowed : both;
}

PciPlace pci_place(const std::string& bus_id, const std::filesystem::path& root) {
  std::string name = bus_id;  // the kernel writes it in lower case
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::filesystem::path device = root / "bus/pci/devices" / name;
  PciPlace place;
  std::istringstream node(first_line(device / "numa_node"));
  if (!(node >> place.numa_node)) place.numa_node = -1;
  place.cpus = parse_cpu_list(first_line(device / "local_cpulist"));
  return place;
}

std::vector<int> allowed_cpus() {
  CpuSet allowed;
  CHECK(sched_getaffinity(0, CpuSet::kBytes, allowed.set.get()) == 0,
        "sched_getaffinity: ", std::strerror(errno));
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu)
    if (CPU_ISSET_S(cpu, CpuSet::kBytes, allowed.set.get())) cpus.push_back(cpu);
  return cpus;
}

void bind_threads(const std::vector<int>& cpus) {
  CpuSet wanted;
  for (const int cpu : cpus) CPU_SET_S(cpu, CpuSet::kBytes, wanted.set.get());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::stoi(task.path().filename().string());
    if (sched_setaffinity(thread, CpuSet::kBytes, wanted.set.get()) == 0) continue;
    if (errno == ESRCH) continue;  // it ended meanwhile
    fail(ExitCode::Resource, "error: cannot bind to CPUs ", cpu_list_text(cpus), ": ",
         std::strerror(errno), "\n  why : the GPU is near them\n  try : let the launcher bind");
  }
}

}  // namespace ferry
