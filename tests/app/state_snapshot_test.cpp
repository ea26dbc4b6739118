#include "app/state_snapshot.h"

#include <gtest/gtest.h>

#include <cstring>

#include "app/model/cost_model.h"
#include "tests/app/snapshot_runs.h"

namespace ferry {
namespace {

using testing::contents;
using testing::kHost;
using testing::kNarrow;
using testing::Overrides;
using testing::TrainingRank;

const Overrides kFull = {};

// Reads what is in place, and counts that.
class CountingSource final : public SliceSource {
 public:
  const void* read(const void* data, int64_t, void*) override {
    ++num_reads;
    return data;
  }
  int num_reads = 0;
};

class StateSnapshotTest : public testing::SnapshotRuns {
 protected:
  // After a step.
  void train(const Overrides& overrides, const std::function<void(TrainingRank&)>& body) {
    SnapshotRuns::train(overrides, [&](TrainingRank& rank) {
      rank.step();
      rank.model().finish_update();
      body(rank);
    });
  }
  int64_t num_parameters() { return count_parameters(testing::small_run(dir_).gpt()).total(); }
};

// So the host never holds the state twice.
TEST_F(StateSnapshotTest, StateOnTheHostIsReadInPlace) {
  for (const Overrides& overrides : {kFull, kHost})
    train(overrides, [&](TrainingRank& rank) {
      const SnapshotSource source = snapshot_source(rank.model());
      const StateSnapshot snapshot = StateSnapshot::now(source);
      EXPECT_EQ(snapshot.reserved_bytes(), 0);
      const auto parts = stored_parts(source.rows, source.rule, source.store);
      ASSERT_EQ(snapshot.slices().size(), parts.size());
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(snapshot.slices()[i].name, parts[i].name);
        EXPECT_EQ(snapshot.slices()[i].data, parts[i].tensor.raw());
        EXPECT_EQ(snapshot.slices()[i].source, nullptr);
      }
    });
}

TEST_F(StateSnapshotTest, NarrowStateIsCopiedInFullPrecision) {
  train(kNarrow, [&](TrainingRank& rank) {
    const SnapshotSource source = snapshot_source(rank.model());
    const StateSnapshot snapshot = StateSnapshot::now(source);
    EXPECT_EQ(snapshot.reserved_bytes(), 2 * 4 * num_parameters()) << "both moments, in FP32";
    const auto parts = stored_parts(source.rows, source.rule, source.store);
    ASSERT_EQ(snapshot.slices().size(), parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const SliceToSave& slice = snapshot.slices()[i];
      EXPECT_EQ(slice.dtype, DType::F32);
      const std::vector<double> wanted = read_back_as_double(rank.stream(), parts[i].tensor);
      const auto* values = static_cast<const float*>(slice.data);
      EXPECT_EQ(std::vector<double>(values, values + slice.extent.numel()), wanted) << slice.name;
    }
  });
}

// Where others change state meanwhile, only what the store guards stays where it is.
TEST_F(StateSnapshotTest, WhatIsNotGuardedIsCopied) {
  train(kFull, [&](TrainingRank& rank) {
    const auto wanted = contents(StateSnapshot::now(snapshot_source(rank.model())).slices());
    CountingSource guarded;
    StateSnapshot snapshot(snapshot_source(rank.model()), &guarded);
    EXPECT_EQ(snapshot.reserved_bytes(), 0);
    snapshot.reserve();
    EXPECT_EQ(snapshot.reserved_bytes(), 3 * 4 * num_parameters());
    snapshot.take(rank.stream());
    rank.step();
    rank.stream().synchronize();
    EXPECT_EQ(contents(snapshot.slices()), wanted);
    EXPECT_EQ(guarded.num_reads, 0);
    EXPECT_EQ(snapshot.reserved_bytes(), 3 * 4 * num_parameters());
    snapshot.take(rank.stream());
    rank.stream().synchronize();
    EXPECT_NE(contents(snapshot.slices()), wanted);
  });
}

TEST_F(StateSnapshotTest, WhatIsGuardedIsReadThroughItsSource) {
  train(kHost, [&](TrainingRank& rank) {
    const auto wanted = contents(StateSnapshot::now(snapshot_source(rank.model())).slices());
    CountingSource guarded;
    StateSnapshot snapshot(snapshot_source(rank.model()), &guarded);
    snapshot.take(rank.stream());
    EXPECT_EQ(snapshot.reserved_bytes(), 0);
    EXPECT_EQ(contents(snapshot.slices()), wanted);
    EXPECT_EQ(guarded.num_reads, std::ssize(snapshot.slices()));
  });
}

TEST_F(StateSnapshotTest, CopiesFollowStateThatMoves) {
  train(kHost, [&](TrainingRank& rank) {
    const auto wanted = contents(StateSnapshot::now(snapshot_source(rank.model())).slices());
    CountingSource guarded;
    StateSnapshot snapshot(snapshot_source(rank.model()), &guarded);
    for (const double fraction : {0.0, 1.0}) {
      rank.model().hybrid_optimizer()->set_fraction(rank.stream(), fraction);
      snapshot.take(rank.stream());
      rank.stream().synchronize();
      EXPECT_EQ(snapshot.reserved_bytes() == 0, fraction == 1.0);
      EXPECT_EQ(contents(snapshot.slices()), wanted);
    }
  });
}

}  // namespace
}  // namespace ferry
