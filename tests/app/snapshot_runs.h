#pragma once

// Runs whose state is looked at through snapshots.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/slice.h"
#include "core/check.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry::testing {

/// The bytes of all slices by name and place, each read once.
inline std::map<std::string, std::string> contents(const std::vector<SliceToSave>& slices) {
  std::map<std::string, std::string> all;
  for (const SliceToSave& slice : slices) {
    const size_t bytes = static_cast<size_t>(slice.extent.numel()) * size_of(slice.dtype);
    std::string text(bytes, '\0');
    const void* from = slice.data;
    if (slice.source != nullptr)
      from = slice.source->read(slice.data, static_cast<int64_t>(bytes), text.data());
    if (from != text.data()) std::memcpy(text.data(), from, bytes);
    all[concat(slice.name, slice.offset)] = text;
  }
  return all;
}

using Overrides = std::vector<std::string>;
inline const Overrides kHost = {"optimizer.offload.enabled=true", "optimizer.offload.fraction=1",
                                "optimizer.offload.threads=2"};
/// Moments in less than full precision.
inline const Overrides kNarrow = {"optimizer.precision_aware=true", "optimizer.exp_avg_dtype=bf16",
                                  "optimizer.exp_avg_sq_dtype=bf16", "model.precision=bf16"};

class SnapshotRuns : public ::testing::Test {
 protected:
  /// Gives `body` a small run on one rank, before its first step.
  void train(const Overrides& overrides, const std::function<void(TrainingRank&)>& body) {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    const RunConfig config = small_run(dir_, overrides);
    run_ranks(1, [&](Group& world, Control&) {
      TrainingRank rank(config, world);
      body(rank);
    });
  }

  TempDir dir_;
};

}  // namespace ferry::testing
