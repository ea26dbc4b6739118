#pragma once

// Which device every rank of a job takes, and whether that can work: decided once for all ranks, so
// that they agree on the collectives, and a refusal is one message.

#include <string>
#include <vector>

namespace ferry {

/// What one rank would compute on.
struct DeviceClaim {
  std::string host;
  int num_gpus = 0;  // that the rank sees
  std::string gpu;   // its place on the bus of the host; empty: the rank computes on the CPU
};

std::string to_text(const DeviceClaim& claim);
DeviceClaim claim_from_text(const std::string& text);

struct DeviceVerdict {
  std::string refusal;    // the message of an Error(ExitCode::Resource), or empty
  int ranks_sharing = 0;  // ranks whose GPU another rank has, too
};

/// `claims` by rank; `wanted` is run.backend. Refuses: a rank without a GPU where "cuda" is wanted;
/// GPUs for some ranks and the CPU for others; two ranks on one GPU, unless `share_gpu`.
DeviceVerdict judge_devices(const std::vector<DeviceClaim>& claims, const std::string& wanted,
                            bool share_gpu);

}  // namespace ferry
