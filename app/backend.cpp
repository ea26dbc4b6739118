#include "app/backend.h"

#include <fmt/format.h>

#include "core/check.h"
#include "core/comm/nccl_group.h"

namespace ferry {

Backend choose_backend(const std::string& wanted, const std::string& precision, Runtime& runtime) {
  Backend backend;
  backend.cpu = make_cpu_device();
  const bool on_cpu = wanted == "cpu" || (wanted == "auto" && precision == "fp64");
  const int gpus = on_cpu ? 0 : num_cuda_devices();
  if (wanted == "cuda" && gpus == 0)
    fail(ExitCode::Resource, "error: run.backend = \"cuda\", but no GPU can be used\n",
         "  --> rank ", runtime.rank(), " on ", runtime.host_name(), "\n",
         "  why : no CUDA device or driver was found, or this build of ferry has no CUDA "
         "(ferry version says)\n",
         "  try : run.backend=cpu, or a host with a GPU");

  const bool many = runtime.size() > 1;
  if (gpus == 0) {
    backend.transport = many ? "mpi" : "none";
    backend.world = runtime.world_group();
    return backend;
  }
  backend.cuda = make_cuda_device(runtime.local_rank() % gpus);
  const bool shared_gpu = runtime.local_size() > gpus;
  if (!many) {
    backend.transport = "none";
    backend.world = runtime.world_group();
  } else if (nccl_available() && !shared_gpu) {
    backend.transport = "nccl";
    backend.world = runtime.world_nccl_group(*backend.cuda);
  } else {
    backend.transport = "mpi (staged)";
    backend.world = runtime.world_group();
    backend.notice =
        shared_gpu ? fmt::format("{} ranks of this host share {} GPU(s): slow, for tests only",
                                 runtime.local_size(), gpus)
                   : "this build has no NCCL: collectives are staged through the host";
  }
  return backend;
}

}  // namespace ferry
