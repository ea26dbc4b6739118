#include "app/backend.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "app/cpu_binding.h"
#include "app/device_claim.h"
#include "app/run_config.h"
#include "core/check.h"
#include "core/comm/nccl_group.h"

namespace ferry {
namespace {

// Rank 0 judges for all: ranks that decided on their own could choose different collectives.
int agree_on_devices(const DeviceClaim& own, const std::string& wanted, bool share_gpu,
                     Control& control) {
  const std::string what = "agreement on devices";
  const std::vector<std::string> texts = control.gather(to_text(own), 0, what);
  std::vector<DeviceClaim> claims;
  for (const std::string& text : texts) claims.push_back(claim_from_text(text));
  DeviceVerdict verdict;
  if (control.rank() == 0) verdict = judge_devices(claims, wanted, share_gpu);
  const std::string refusal = control.broadcast(verdict.refusal, 0, what);
  if (!refusal.empty()) fail(ExitCode::Resource, refusal);
  return std::stoi(control.broadcast(std::to_string(verdict.ranks_sharing), 0, what));
}

// Binds this process near its GPU, if it has one, and says where it runs.
std::string bind_near(const std::string& bus_id) {
  std::vector<int> cpus = allowed_cpus();
  std::string node;
  if (!bus_id.empty()) {
    const PciPlace place = pci_place(bus_id);
    const std::vector<int> near = nearest_cpus(cpus, place.cpus);
    if (near != cpus) bind_threads(near);
    cpus = near;
    if (place.numa_node >= 0) node = fmt::format(" of NUMA node {}", place.numa_node);
  }
  return fmt::format("CPUs {}{}", cpu_list_text(cpus), node);
}

}  // namespace

Backend choose_backend(const std::string& wanted, const std::string& precision, Runtime& runtime,
                       bool share_gpu) {
  Backend backend;
  const bool on_cpu = wanted == "cpu" || (wanted == "auto" && precision == "fp64");
  const int gpus = on_cpu ? 0 : num_cuda_devices();
  const int ordinal = gpus > 0 ? runtime.local_rank() % gpus : 0;
  const DeviceClaim own{runtime.host_name(), gpus, gpus > 0 ? cuda_bus_id(ordinal) : ""};
  const int sharing = agree_on_devices(own, wanted, share_gpu, runtime.control());

  // Before the device, whose driver makes threads.
  const std::string cpus = bind_near(own.gpu);
  backend.cpu = make_cpu_device();
  if (gpus > 0) backend.cuda = make_cuda_device(ordinal);
  backend.binding =
      fmt::format("rank {} on {}: {}{}, {}", runtime.rank(), own.host, backend.device().name(),
                  own.gpu.empty() ? "" : " at " + own.gpu, cpus);

  const bool many = runtime.size() > 1;
  if (gpus == 0 || !many) {
    backend.transport = many ? "mpi" : "none";
    backend.world = runtime.world_group();
  } else if (nccl_available() && sharing == 0) {
    backend.transport = "nccl";
    backend.world = runtime.world_nccl_group(*backend.cuda);
  } else {
    backend.transport = "mpi (staged)";
    backend.world = runtime.world_group();
    backend.notice = sharing > 0
                         ? fmt::format("{} of {} ranks share GPUs: slow, for tests only", sharing,
                                       runtime.size())
                         : "this build has no NCCL: collectives are staged through the host";
  }
  return backend;
}

Backend choose_backend(const RunConfig& config, Runtime& runtime) {
  Backend backend = choose_backend(config.run.backend, config.model.precision, runtime,
                                   config.parallel.share_gpu);
  backend.device().set_poison_memory(config.debug.poison_memory);
  return backend;
}

void require_gpu_for_graphs(const RunConfig& config, const Backend& backend) {
  if (config.cuda_graph.impl == "none" || backend.on_gpu()) return;
  fail(ExitCode::Usage, "error: cuda_graph.impl = ", config.cuda_graph.impl,
       " on the CPU\n  why : run.backend = ", config.run.backend,
       " is the CPU here, and only GPUs replay recorded work\n  try : cuda_graph.impl = none");
}

}  // namespace ferry
