#include "app/guarded_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "app/model/cost_model.h"
#include "tests/app/snapshot_runs.h"

namespace ferry {
namespace {

using testing::contents;
using testing::kHost;
using testing::kNarrow;
using testing::Overrides;
using testing::TrainingRank;

const Overrides kDevice = {};
const Overrides kHalf = {"optimizer.offload.enabled=true", "optimizer.offload.fraction=0.5",
                         "optimizer.offload.overlap_d2h_h2d=true", "optimizer.offload.threads=2"};

class GuardedSnapshotTest : public testing::SnapshotRuns {
 protected:
  // The state as it is now.
  static std::map<std::string, std::string> state(TrainingRank& rank) {
    rank.model().finish_update();
    return contents(StateSnapshot::now(snapshot_source(rank.model())).slices());
  }
};

// What is read after further updates is the state of the snapshot, wherever it lives.
TEST_F(GuardedSnapshotTest, HoldsTheStateOfItsStep) {
  for (const Overrides& overrides : {kDevice, kNarrow, kHost, kHalf})
    train(overrides, [&](TrainingRank& rank) {
      GuardedSnapshot buffer(snapshot_source(rank.model()), 0);
      for (int round = 0; round < 2; ++round) {
        rank.step();
        const auto wanted = state(rank);
        buffer.take();
        for (int step = 0; step < 2; ++step) {
          buffer.wait_before_update();
          rank.step();
        }
        buffer.copied().wait_host();
        EXPECT_EQ(contents(buffer.slices()), wanted);
        buffer.release();
        EXPECT_NE(state(rank), wanted);
      }
      EXPECT_EQ(buffer.copied_on_write() > 0, rank.model().hybrid_optimizer() != nullptr);
      EXPECT_GE(buffer.take_waited_seconds(), 0);
    });
}

// Only what is on the device takes memory from the start.
TEST_F(GuardedSnapshotTest, ReservesMemoryForStateOnTheDevice) {
  std::map<std::string, int64_t> reserved;
  const auto bytes = [&](const Overrides& overrides) {
    int64_t result = 0;
    train(overrides, [&](TrainingRank& rank) {
      const GuardedSnapshot buffer(snapshot_source(rank.model()), 0);
      result = buffer.reserved_bytes();
    });
    return result;
  };
  const int64_t all = bytes(kDevice);
  EXPECT_EQ(all, 12 * count_parameters(testing::small_run(dir_).gpt()).total());
  EXPECT_EQ(bytes(kNarrow), all) << "moments are stored in full precision";
  EXPECT_EQ(bytes(kHost), 0);
  EXPECT_GT(bytes(kHalf), 0);
  EXPECT_LT(bytes(kHalf), all);
}

// Without memory for copies an update of the host's part waits until it was written.
TEST_F(GuardedSnapshotTest, AnUpdateWaitsWhereCopiesHaveNoMemory) {
  train(kHost, [&](TrainingRank& rank) {
    GuardedSnapshot buffer(snapshot_source(rank.model()), 1);  // one block
    rank.step();
    const auto wanted = state(rank);
    buffer.take();
    std::map<std::string, std::string> written;
    std::thread writer([&] { written = contents(buffer.slices()); });
    rank.step();
    rank.model().finish_update();
    writer.join();
    EXPECT_EQ(written, wanted);
    buffer.release();
  });
}

// State that moves from the host to the device waits for its reader, and is staged from then on.
TEST_F(GuardedSnapshotTest, FollowsStateThatMoves) {
  train(kHost, [&](TrainingRank& rank) {
    GuardedSnapshot buffer(snapshot_source(rank.model()), 0);
    rank.step();
    const auto wanted = state(rank);
    buffer.take();
    std::map<std::string, std::string> written;
    std::thread writer([&] {
      written = contents(buffer.slices());
      buffer.release();
    });
    rank.model().hybrid_optimizer()->set_fraction(rank.stream(), 0);
    writer.join();
    EXPECT_EQ(written, wanted);
    EXPECT_EQ(buffer.reserved_bytes(), 0);
    buffer.take();
    EXPECT_GT(buffer.reserved_bytes(), 0);
    buffer.wait_before_update();
    rank.step();
    buffer.copied().wait_host();
    EXPECT_EQ(contents(buffer.slices()), wanted);
    buffer.release();
  });
}

}  // namespace
}  // namespace ferry
