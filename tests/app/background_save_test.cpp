#include "app/background_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "core/check.h"
#include "core/stream_cpu.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class BackgroundSaveTest : public ::testing::Test {
 protected:
  BackgroundSaveTest() { attempt_ = begin_attempt(dir_ / "run", solo_).number; }

  SaveRequest request(int64_t step) const {
    SaveRequest request;
    request.run_dir = dir_ / "run";
    request.step = step;
    request.attempt = attempt_;
    request.slices = slices_;
    request.state = {{"step", step}};
    return request;
  }
  static std::string error_of(const SaveOutcome& outcome) {
    try {
      if (outcome.error) std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  testing::TempDir dir_;
  SoloControl solo_;
  int64_t attempt_ = 0;
  std::vector<float> values_ = {1, 2, 3};
  std::vector<SliceToSave> slices_ = {
      {"model/weight", DType::F32, {3}, {0}, {3}, values_.data(), nullptr}};
};

TEST_F(BackgroundSaveTest, SavesWhenTheCopyIsThereAndTellsItsEnd) {
  BackgroundSave save(std::make_unique<SoloControl>());
  EXPECT_FALSE(save.in_flight());
  for (const int64_t step : {4, 8}) {
    const auto copied = std::make_shared<HostEvent>();
    bool ended = false;
    save.begin(request(step), Event(copied), [&] { ended = true; });
    EXPECT_TRUE(save.in_flight());
    EXPECT_TRUE(save.busy()) << "the copy is not there";
    EXPECT_THROW(save.begin(request(9), Event(), [] {}), Error);
    values_[0] = static_cast<float>(step);
    copied->set(nullptr);
    const SaveOutcome outcome = save.finish();
    EXPECT_EQ(error_of(outcome), "");
    EXPECT_TRUE(ended);
    EXPECT_FALSE(save.busy());
    EXPECT_FALSE(save.in_flight());
    EXPECT_EQ(outcome.report.directory, dir_ / "run/ckpt" / step_directory_name(step));
    const Checkpoint checkpoint = Checkpoint::open(outcome.report.directory);
    EXPECT_EQ(checkpoint.root(), outcome.report.root);
    float read = 0;
    checkpoint.load({{{"model/weight", DType::F32, {3}, {0}, {1}, &read}}});
    EXPECT_EQ(read, step);
  }
  EXPECT_THROW(save.finish(), Error) << "none is in flight";
}

TEST_F(BackgroundSaveTest, KeepsItsError) {
  BackgroundSave save(std::make_unique<SoloControl>());
  ++attempt_;  // no such attempt has begun
  bool ended = false;
  save.begin(request(4), Event(), [&] { ended = true; });
  EXPECT_THAT(error_of(save.finish()), HasSubstr("may not save"));
  EXPECT_TRUE(ended);
  --attempt_;
  save.begin(request(4), Event(), [] {});
  EXPECT_EQ(error_of(save.finish()), "");
}

// A copy that fails on one rank is the error of all, and nobody waits for it.
TEST_F(BackgroundSaveTest, RanksFailTogether) {
  ThreadWorld world(2, 60);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      BackgroundSave save(world.make_control(rank, "checkpoint"));
      const auto copied = std::make_shared<HostEvent>();
      copied->set(rank == 0 ? nullptr
                            : std::make_exception_ptr(Error(ExitCode::Resource, "copy failed")));
      save.begin(request(4), Event(copied), [] {});
      world.control(rank).barrier("training goes on");
      EXPECT_THAT(error_of(save.finish()), HasSubstr("rank 1: copy failed"));
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(BackgroundSaveTest, TheDestructorWaits) {
  bool ended = false;
  {
    BackgroundSave save(std::make_unique<SoloControl>());
    save.begin(request(4), Event(), [&] { ended = true; });
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(Checkpoint::open(dir_ / "run/ckpt" / step_directory_name(4)).step(), 4);
}

}  // namespace
}  // namespace ferry
