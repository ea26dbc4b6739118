#include "app/ckpt_prune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/saved_values.h"
#include "tests/support/damage.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

class CkptPrune : public ::testing::Test {
 protected:
  CkptPrune() {
    for (const int64_t step : {10, 20, 30, 40, 50})
      testing::save_values(run_.path(), step, {testing::counted_values("model/a", {40})});
  }
  Path directory(int64_t step) { return run_ / "ckpt" / step_directory_name(step); }
  void damage(int64_t step) { std::filesystem::remove(directory(step) / "shard-00000.h5"); }
  std::vector<int64_t> steps() { return list_steps(posix_file_system(), run_.path()); }

  /// "keep 50" and so on, newest first.
  std::vector<std::string> planned(int64_t keep) {
    std::vector<std::string> texts;
    for (const PruneDecision& decision : plan_prune(posix_file_system(), run_.path(), keep)) {
      const char* fates[] = {"keep ", "remove ", "leave "};
      texts.push_back(fates[static_cast<int>(decision.fate)] +
                      std::to_string(*step_of_directory(decision.name)));
      EXPECT_EQ(decision.reason.empty(), decision.fate != PruneDecision::Fate::Leave);
    }
    return texts;
  }
  void prune_to(int64_t keep) {
    prune(posix_file_system(), run_.path(), plan_prune(posix_file_system(), run_.path(), keep));
  }

  testing::TempDir run_;
};

TEST_F(CkptPrune, KeepsTheNewest) {
  EXPECT_THAT(planned(3), ElementsAre("keep 50", "keep 40", "keep 30", "remove 20", "remove 10"));
  EXPECT_THAT(steps(), ElementsAre(10, 20, 30, 40, 50));  // a plan changes nothing
  prune_to(3);
  EXPECT_THAT(steps(), ElementsAre(30, 40, 50));
  prune_to(3);
  EXPECT_THAT(steps(), ElementsAre(30, 40, 50));
  prune_to(2);
  EXPECT_THAT(steps(), ElementsAre(40, 50));
  EXPECT_TRUE(std::filesystem::is_empty(run_ / "ckpt/trash"));
  for (const int64_t step : steps()) Checkpoint::open(directory(step)).verify();
}

TEST_F(CkptPrune, DamagedOnesDoNotCountAndStay) {
  damage(50);
  damage(30);
  damage(10);
  EXPECT_THAT(planned(2), ElementsAre("leave 50", "keep 40", "leave 30", "keep 20", "remove 10"));
  prune_to(2);
  EXPECT_THAT(steps(), ElementsAre(20, 30, 40, 50));
}

TEST_F(CkptPrune, ADamagedByteCountsAsWell) {
  const int64_t address = Checkpoint::open(directory(50)).manifest().tensors[0].slices[0].address;
  testing::flip_bit(directory(50) / "shard-00000.h5", address + 20, 0);
  EXPECT_EQ(planned(4)[0], "leave 50");
}

TEST_F(CkptPrune, TheLastGoodOneStays) {
  for (const int64_t step : {50, 40, 30, 20}) damage(step);
  EXPECT_THAT(planned(2), ElementsAre("leave 50", "leave 40", "leave 30", "leave 20", "keep 10"));
  prune_to(2);
  EXPECT_THAT(steps(), ElementsAre(10, 20, 30, 40, 50));
}

TEST_F(CkptPrune, FewerThanTwoAreRefused) {
  for (const int64_t keep : {1, 0, -1}) {
    EXPECT_THAT(
        error_of(ExitCode::Usage, [&] { plan_prune(posix_file_system(), run_.path(), keep); }),
        HasSubstr(concat("error: --keep ", keep, "\n  why : at least two checkpoints")));
  }
}

TEST_F(CkptPrune, GoesOnAfterAnInterruption) {
  std::filesystem::create_directories(run_ / "ckpt/trash");
  std::filesystem::rename(directory(10), run_ / "ckpt/trash/step-00000010.a0");
  std::filesystem::remove(run_ / "ckpt/trash/step-00000010.a0/MANIFEST.json");
  prune_to(4);
  EXPECT_THAT(steps(), ElementsAre(20, 30, 40, 50));
  EXPECT_TRUE(std::filesystem::is_empty(run_ / "ckpt/trash"));
}

TEST_F(CkptPrune, WhatCannotBeRemovedIsSaid) {
  const auto plan = plan_prune(posix_file_system(), run_.path(), 4);
  std::filesystem::remove_all(directory(10));  // somebody else was faster
  EXPECT_THAT(error_of(ExitCode::Storage, [&] { prune(posix_file_system(), run_.path(), plan); }),
              HasSubstr("cannot rename " + directory(10).native()));
}

}  // namespace
}  // namespace ferry
