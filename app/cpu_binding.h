#pragma once

// On which CPUs the threads of a rank run. A GPU is near the CPUs of one NUMA node: copies to
// pinned memory of another node are slower.

#include <filesystem>
#include <string>
#include <vector>

namespace ferry {

/// "0-3,8" -> {0, 1, 2, 3, 8}, sorted, as the kernel writes lists of CPUs. Error(Internal) if it is
/// not such a list.
std::vector<int> parse_cpu_list(const std::string& text);
/// {0, 1, 2, 3, 8} -> "0-3,8".
std::string cpu_list_text(const std::vector<int>& cpus);

/// Those of `allowed` that are near; all of `allowed` if none is, because whoever started this
/// process chose them.
std::vector<int> nearest_cpus(const std::vector<int>& allowed, const std::vector<int>& near);

struct PciPlace {
  int numa_node = -1;     // -1: the machine has one, or does not say
  std::vector<int> cpus;  // near the device; empty if not known
};
/// Of a PCI device "0000:1B:00.0" (any case), from `root`/bus/pci/devices.
PciPlace pci_place(const std::string& bus_id, const std::filesystem::path& root = "/sys");

/// The CPUs that this thread may run on.
std::vector<int> allowed_cpus();
/// Binds all threads that this process has now, and with them those it will make.
/// Error(ExitCode::Resource) if the system refuses.
void bind_threads(const std::vector<int>& cpus);

}  // namespace ferry
