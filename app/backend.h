#pragma once

// Which device a rank computes on and how its ranks talk: chosen once, and said in the banner.

#include <memory>
#include <string>

#include "core/comm/runtime.h"
#include "core/device.h"

namespace ferry {

struct Backend {
  std::unique_ptr<Device> cpu;   // host memory and host streams; always there
  std::unique_ptr<Device> cuda;  // null on the CPU backend
  std::string transport;  // of collectives on the device: "none", "mpi", "mpi (staged)", "nccl"
  std::unique_ptr<Group> world;  // of collectives on the device
  std::string notice;            // something the user should know, or empty

  Device& device() const { return cuda ? *cuda : *cpu; }
  bool on_gpu() const { return cuda != nullptr; }
};

/// `wanted` is run.backend: "auto", "cpu" or "cuda"; "auto" takes a GPU if there is one, and the
/// CPU for model.precision fp64, which GPUs do not have here. A rank takes GPU local_rank modulo
/// the number of GPUs it sees. NCCL is used where every rank of a host has a GPU of its own and
/// Ferry was built with it; else MPI, staged through pinned memory. Collective.
/// Error(ExitCode::Resource) if "cuda" is wanted and there is none.
Backend choose_backend(const std::string& wanted, const std::string& precision, Runtime& runtime);

}  // namespace ferry
