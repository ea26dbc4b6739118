#include "app/sample_log.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "app/metrics.h"

namespace ferry {
namespace {

// FNV-1a of the tokens of a row and of the label of the last: all that a sample is.
uint64_t digest(const Microbatch& batch, int64_t row) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](int32_t token) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
  };
  for (int64_t t = 0; t < batch.seq; ++t)
    add(batch.tokens[static_cast<size_t>(row * batch.seq + t)]);
  add(batch.labels[static_cast<size_t>((row + 1) * batch.seq - 1)]);
  return hash;
}

}  // namespace

std::function<void(const Microbatch&)> sample_log(const RunConfig& config, const MeshGroups& groups,
                                                  int64_t consumed_samples) {
  const MeshCoordinates at = groups.coordinates();
  if (!config.debug.log_samples || at.tp != 0 || at.pp != 0 || at.cp != 0) return nullptr;
  const auto lines = std::make_shared<JsonLines>(std::filesystem::path(config.run.dir) / "log" /
                                                 fmt::format("samples-{:04}.jsonl", at.dp));
  lines->write({{"from", consumed_samples}});
  return [lines](const Microbatch& batch) {
    std::vector<std::string> digests;
    for (int64_t row = 0; row < batch.batch; ++row)
      digests.push_back(fmt::format("{:016x}", digest(batch, row)));
    lines->write({{"samples", batch.sample_ids}, {"tokens", digests}});
  };
}

}  // namespace ferry
