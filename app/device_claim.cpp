#include "app/device_claim.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "core/check.h"

namespace ferry {
namespace {

std::string place(size_t rank, const DeviceClaim& claim) {
  return concat("\n  --> rank ", rank, " on ", claim.host);
}

std::string no_gpu(size_t rank, const DeviceClaim& claim) {
  return concat("error: run.backend = \"cuda\", but no GPU can be used", place(rank, claim),
                "\n  why : no CUDA device or driver was found, or this build of ferry has no CUDA "
                "(ferry version says)\n  try : run.backend=cpu, or a host with a GPU");
}

std::string mixed(size_t without, size_t with, const std::vector<DeviceClaim>& claims) {
  return concat("error: some ranks have a GPU and some have none", place(without, claims[without]),
                "\n  why : rank ", with, " on ", claims[with].host, " sees ", claims[with].num_gpus,
                " GPU(s), and all ranks compute on the same kind of device\n  try : "
                "run.backend=cpu, or hosts that all have GPUs");
}

std::string shared(size_t first, size_t second, const std::vector<DeviceClaim>& claims) {
  const DeviceClaim& claim = claims[second];
  const auto ranks = std::count_if(claims.begin(), claims.end(), [&](const DeviceClaim& other) {
    return other.host == claim.host;
  });
  return concat("error: ranks ", first, " and ", second, " would share a GPU", place(second, claim),
                "\n  why : ", ranks, " ranks run there, and rank ", second, " sees ",
                claim.num_gpus, " GPU(s), of which it takes ", claim.gpu,
                "\n  try : as many ranks per host as it has GPUs, or parallel.share_gpu=true, "
                "which is slow and for tests");
}

}  // namespace

std::string to_text(const DeviceClaim& claim) {
  return concat(claim.host, '\n', claim.num_gpus, '\n', claim.gpu);
}

DeviceClaim claim_from_text(const std::string& text) {
  DeviceClaim claim;
  std::istringstream in(text);
  std::getline(in, claim.host);
  in >> claim.num_gpus >> claim.gpu;
  return claim;
}

DeviceVerdict judge_devices(const std::vector<DeviceClaim>& claims, const std::string& wanted,
                            bool share_gpu) {
  DeviceVerdict verdict;
  const auto find_gpu = [&](bool has) {
    const auto found = std::find_if(claims.begin(), claims.end(), [&](const DeviceClaim& claim) {
      return claim.gpu.empty() != has;
    });
    return static_cast<size_t>(found - claims.begin());
  };
  const size_t with = find_gpu(true), without = find_gpu(false);
  if (without < claims.size() && wanted == "cuda")
    return {.refusal = no_gpu(without, claims[without])};
  if (with == claims.size()) return verdict;
  if (without < claims.size()) return {.refusal = mixed(without, with, claims)};

  std::map<std::string, std::vector<size_t>> ranks_of;
  for (size_t rank = 0; rank < claims.size(); ++rank)
    ranks_of[concat(claims[rank].host, ' ', claims[rank].gpu)].push_back(rank);
  const std::vector<size_t>* first = nullptr;
  for (const auto& [gpu, ranks] : ranks_of) {
    if (ranks.size() < 2) continue;
    verdict.ranks_sharing += static_cast<int>(ranks.size());
    if (first == nullptr || ranks[1] < (*first)[1]) first = &ranks;
  }
  if (first != nullptr && !share_gpu) verdict.refusal = shared((*first)[0], (*first)[1], claims);
  return verdict;
}

}  // namespace ferry
