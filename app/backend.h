#pragma once

// Which device a rank computes on and how its ranks talk: chosen once, and said in the banner.

#include <memory>
#include <string>

#include "core/comm/runtime.h"
#include "core/device.h"

namespace ferry {

struct RunConfig;

struct Backend {
  std::unique_ptr<Device> cpu;   // host memory and host streams; always there
  std::unique_ptr<Device> cuda;  // null on the CPU backend
  std::string transport;  // of collectives on the device: "none", "mpi", "mpi (staged)", "nccl"
  std::unique_ptr<Group> world;  // of collectives on the device
  std::string notice;            // something the user should know, or empty
  std::string binding;  // "rank 3 on node-a: NVIDIA H200 (cuda:3) at 0000:1B:00.0, CPUs 0-47"

  Device& device() const { return cuda ? *cuda : *cpu; }
  bool on_gpu() const { return cuda != nullptr; }
};

/// `wanted` is run.backend: "auto", "cpu" or "cuda"; "auto" takes a GPU if there is one, and the
/// CPU for model.precision fp64, which GPUs do not have here. A rank takes GPU local_rank modulo
/// the number of GPUs it sees, and its threads are bound to those of its CPUs that are near it.
/// NCCL is used where every rank has a GPU of its own and Ferry was built with it; else MPI, staged
/// through pinned memory. Collective. The same Error(ExitCode::Resource) on all ranks if "cuda" is
/// wanted and a rank has no GPU, if only some have one, or if two share one without `share_gpu`.
Backend choose_backend(const std::string& wanted, const std::string& precision, Runtime& runtime,
                       bool share_gpu = false);
/// As the configuration has these, and with debug.poison_memory.
Backend choose_backend(const RunConfig& config, Runtime& runtime);
/// Before training steps: Error(ExitCode::Usage) if cuda_graph.impl asks for graphs and
/// run.backend = "auto" found no GPU.
void require_gpu_for_graphs(const RunConfig& config, const Backend& backend);

}  // namespace ferry
