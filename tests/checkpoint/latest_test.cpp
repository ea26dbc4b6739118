#include "checkpoint/latest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/checkpoint/sample_model.h"
#include "tests/checkpoint/thread_control.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using testing::SampleModel;
using testing::TempDir;

int64_t begin(const Path& run_dir) {
  SoloControl control;
  return begin_attempt(run_dir, control).number;
}

TEST(FindLatest, EveryRankGetsTheNewestThatVerifies) {
  const TempDir run;
  begin(run.path());
  testing::SaveOptions options;
  for (const int64_t step : {10, 20, 30}) {
    options.step = step;
    testing::save_solo(run.path(), SampleModel(), options);
  }
  std::ofstream(run.path() / "LATEST") << "ckpt/step-00000010\n";  // a hint, no more
  std::fstream shard(run.path() / "ckpt" / "step-00000030" / "shard-00000.h5",
                     std::ios::in | std::ios::out | std::ios::binary);
  shard.seekp(-1, std::ios::end);
  shard.put('?');
  shard.close();
  const auto errors = testing::run_ranks(2, [&](Control& control) {
    const Latest latest = find_latest(run.path(), control);
    if (!latest.checkpoint || latest.checkpoint->step() != 20 || latest.rejected.size() != 1) {
      throw std::runtime_error("wrong answer");
    }
    if (latest.rejected[0].reason.find("shard-00000.h5") == std::string::npos) {
      throw std::runtime_error(latest.rejected[0].reason);
    }
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

TEST(FindLatest, NoRunAndNoCheckpointAreNoErrors) {
  const TempDir run;
  SoloControl control;
  for (const Path& dir : {run.path(), run.path() / "absent"}) {
    const Latest latest = find_latest(dir, control);
    EXPECT_FALSE(latest.checkpoint.has_value());
    EXPECT_TRUE(latest.rejected.empty());
  }
}

}  // namespace
}  // namespace ferry
