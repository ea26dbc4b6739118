#include "checkpoint/run_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/saved_runs.h"

namespace ferry {
namespace {

using testing::begin;
using ::testing::HasSubstr;
using testing::SampleModel;
using testing::save_solo;
using testing::storage_error;
using testing::TempDir;

Attempt attempt_in(const Path& run_dir) {
  SoloControl control;
  return begin_attempt(run_dir, control);
}

TEST(RunId, IsMadeOnceAndCarriedOn) {
  const TempDir run, other;
  const std::string id = attempt_in(run.path()).run;
  EXPECT_TRUE(is_run_id(id)) << id;
  EXPECT_EQ(attempt_in(run.path()).run, id);
  EXPECT_EQ(read_run_id(posix_file_system(), run.path()), id);
  EXPECT_NE(attempt_in(other.path()).run, id);
}

TEST(RunId, IsInTheManifestOfEachCheckpointAndInNoRoot) {
  const TempDir run, other;
  begin(run.path());
  begin(other.path());
  const Checkpoint here = Checkpoint::open(save_solo(run.path(), SampleModel()).directory);
  const Checkpoint there = Checkpoint::open(save_solo(other.path(), SampleModel()).directory);
  EXPECT_EQ(here.manifest().run, read_run_id(posix_file_system(), run.path()));
  EXPECT_NE(here.manifest().run, there.manifest().run);
  EXPECT_EQ(here.root(), there.root());
}

TEST(RunId, AParentWithoutARunIsOfThisRun) {
  const TempDir run;
  begin(run.path());
  const auto parent_of_saved = [&](const CheckpointName& parent) {
    testing::RankSlices slices(SampleModel(), 0, 1);
    SaveRequest request = testing::sample_request(run.path(), slices.to_save(), {});
    request.parent = parent;
    SoloControl control;
    return *Checkpoint::open(save_checkpoint(request, control).directory).manifest().parent;
  };
  const std::string root(64, 'a'), another(32, 'c');
  EXPECT_EQ(parent_of_saved({30, root}).run, read_run_id(posix_file_system(), run.path()));
  EXPECT_EQ(parent_of_saved({30, root, another}).run, another);
}

TEST(RunId, OtherTextIsRefused) {
  EXPECT_TRUE(is_run_id(kUnknownRun));
  for (const std::string text :
       {"", "0", "0123456789abcdef0123456789abcdeF", "0123456789abcdef0123456789abcdef0"})
    EXPECT_FALSE(is_run_id(text)) << text;
  const TempDir run;
  EXPECT_THAT(storage_error([&] { read_run_id(posix_file_system(), run.path()); }),
              HasSubstr("cannot open " + run_id_file(run.path()).native()));
  for (const std::string text : {"", "0123456789abcdef0123456789abcdef", "something else\n",
                                 "0123456789abcdef0123456789abcdef\nmore\n"}) {
    std::filesystem::remove(run_id_file(run.path()));
    write_text(posix_file_system(), run_id_file(run.path()), text);
    EXPECT_THAT(storage_error([&] { attempt_in(run.path()); }),
                HasSubstr("does not hold the name of the run, 32 hexadecimal digits: put back"))
        << text;
  }
}

}  // namespace
}  // namespace ferry
