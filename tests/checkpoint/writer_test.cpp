#include "checkpoint/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "checkpoint/directory.h"
#include "checkpoint/forwarding_file_system.h"
#include "checkpoint/reader.h"
#include "core/check.h"
#include "tests/checkpoint/saved_runs.h"

namespace ferry {
namespace {

using testing::begin;
using ::testing::HasSubstr;
using testing::RankSlices;
using testing::SampleModel;
using testing::SampleTensor;
using testing::save_with_ranks;
using testing::TempDir;

std::string content_of(const Path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(Writer, RoundTripKeepsEveryBit) {
  const TempDir run;
  const SampleModel model;
  begin(run.path());
  const SaveReport report = testing::save_solo(run.path(), model);
  EXPECT_EQ(report.directory, run.path() / "ckpt" / "step-00000060");
  EXPECT_TRUE(report.warnings.empty());

  const Checkpoint checkpoint = Checkpoint::open(report.directory);
  EXPECT_TRUE(testing::holds(checkpoint, model));
  EXPECT_EQ(checkpoint.step(), 60);
  EXPECT_EQ(checkpoint.state(), testing::sample_state(60));
  EXPECT_TRUE(std::signbit(std::get<double>(checkpoint.state().at("negative_zero"))));
  EXPECT_EQ(checkpoint.manifest().config, "[run]\nname = \"sample\"\n");
  EXPECT_EQ(checkpoint.manifest().layout, "dp=2");
  EXPECT_EQ(checkpoint.manifest().attempt, 1);
  EXPECT_EQ(checkpoint.root(), report.root);
  EXPECT_NO_THROW(checkpoint.verify());
  EXPECT_EQ(content_of(run / "LATEST"), "ckpt/step-00000060\n");
}

TEST(Writer, ReportCountsBytesOnDisk) {
  const TempDir run;
  begin(run.path());
  const SaveReport report = testing::save_solo(run.path(), SampleModel());
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(report.directory)) {
    if (entry.path().extension() == ".h5") bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(report.bytes, bytes);
}

TEST(Writer, AnyNumberOfWritersGivesTheSameRootAndContent) {
  const SampleModel model;
  const TempDir one, two, three;
  const std::string root = save_with_ranks(1, one.path(), model).root;
  for (const auto& [size, dir] : {std::pair<int, const TempDir*>{2, &two}, {3, &three}}) {
    const SaveReport report = save_with_ranks(size, dir->path(), model);
    EXPECT_EQ(report.root, root) << size;
    const Checkpoint checkpoint = Checkpoint::open(report.directory);
    EXPECT_EQ(checkpoint.manifest().files.size(), static_cast<size_t>(size) + 1);
    EXPECT_TRUE(testing::holds(checkpoint, model)) << size;
    EXPECT_NO_THROW(checkpoint.verify());
  }
}

TEST(Writer, RootDependsOnTensorsScalarsAndStepOnly) {
  const TempDir run, other;
  begin(run.path());
  begin(other.path());
  begin(other.path());
  testing::SaveOptions options;
  const std::string root = testing::save_solo(run.path(), SampleModel(), options).root;

  options.attempt = 2;
  options.config = "another";
  options.chunk_bytes = 4096;
  EXPECT_EQ(testing::save_solo(other.path(), SampleModel(), options).root, root);

  SampleModel changed;
  changed.tensors()[0].bytes[5] ^= 1;
  EXPECT_NE(testing::save_solo(other.path(), changed, options).root, root);
  options.step = 61;
  EXPECT_NE(testing::save_solo(other.path(), SampleModel(), options).root, root);
}

TEST(Writer, SameStateGivesIdenticalFiles) {
  const TempDir first, second;
  const SampleModel model;
  const SaveReport a = save_with_ranks(2, first.path(), model);
  const SaveReport b = save_with_ranks(2, second.path(), model);
  for (const char* name : {"shard-00000.h5", "shard-00001.h5", "global.h5"}) {
    EXPECT_EQ(content_of(a.directory / name), content_of(b.directory / name)) << name;
  }
}

TEST(Writer, OrderOfSlicesDoesNotMatter) {
  const TempDir first, second;
  begin(first.path());
  begin(second.path());
  const SampleModel model;
  const SaveReport a = testing::save_solo(first.path(), model);
  RankSlices slices(model, 0, 1);
  std::reverse(slices.to_save().begin(), slices.to_save().end());
  SoloControl control;
  const SaveReport b =
      save_checkpoint(testing::sample_request(second.path(), slices.to_save(), {}), control);
  EXPECT_EQ(content_of(a.directory / "shard-00000.h5"), content_of(b.directory / "shard-00000.h5"));
}

TEST(Writer, SavingAStepAgainReplacesIt) {
  const TempDir run;
  begin(run.path());
  const std::string root = testing::save_solo(run.path(), SampleModel(1)).root;
  const SaveReport second = testing::save_solo(run.path(), SampleModel(2));
  EXPECT_NE(second.root, root);
  EXPECT_TRUE(testing::holds(Checkpoint::open(second.directory), SampleModel(2)));
  EXPECT_TRUE(std::filesystem::is_empty(run.path() / "ckpt" / "trash"));
}

TEST(Writer, ParentIsRecorded) {
  const TempDir run;
  begin(run.path());
  RankSlices slices(SampleModel(), 0, 1);
  SaveRequest request = testing::sample_request(run.path(), slices.to_save(), {});
  request.parent = {30, std::string(64, 'a')};
  SoloControl control;
  const Checkpoint checkpoint = Checkpoint::open(save_checkpoint(request, control).directory);
  ASSERT_TRUE(checkpoint.manifest().parent.has_value());
  EXPECT_EQ(checkpoint.manifest().parent->step, 30);
  EXPECT_EQ(checkpoint.manifest().parent->root, std::string(64, 'a'));
}

/// Around the real one: what a network file system may do with the rename that publishes.
class LyingRename final : public ForwardingFileSystem {
 public:
  enum class Lie { SaysItFailed, PublishesAnother };
  explicit LyingRename(Lie lie) : lie_(lie) {}
  void rename(const Path& from, const Path& to) override {
    if (!step_of_directory(to.filename())) return real_.rename(from, to);
    if (lie_ == Lie::PublishesAnother)
      std::ofstream(from / kManifestFileName, std::ios::app) << " ";
    real_.rename(from, to);
    if (lie_ == Lie::SaysItFailed) fail(ExitCode::Storage, "cannot rename: not found");
  }

 private:
  Lie lie_;
};

SaveReport save_unverified(const TempDir& run, FileSystem& file_system) {
  begin(run.path());
  RankSlices slices(SampleModel(), 0, 1);
  SaveRequest request = testing::sample_request(run.path(), slices.to_save(), {});
  request.verify = false;
  request.file_system = &file_system;
  SoloControl control;
  return save_checkpoint(request, control);
}

TEST(Writer, ARenameThatWasMadeButReportedAsFailedCounts) {
  const TempDir run;
  LyingRename file_system(LyingRename::Lie::SaysItFailed);
  EXPECT_NO_THROW(Checkpoint::open(save_unverified(run, file_system).directory).verify());
}

TEST(Writer, AnotherManifestUnderTheFinalNameIsFoundWithoutVerification) {
  const TempDir run;
  LyingRename file_system(LyingRename::Lie::PublishesAnother);
  EXPECT_THAT(testing::storage_error([&] { save_unverified(run, file_system); }),
              HasSubstr("MANIFEST.json is not what was written"));
  EXPECT_TRUE(list_steps(posix_file_system(), run.path()).empty());
}

TEST(Writer, GapsAndOverlapsAreRefusedOnEveryRank) {
  for (const bool overlap : {false, true}) {
    const TempDir run;
    const SampleModel model;
    const auto errors = testing::run_ranks(2, [&](Control& control) {
      begin_attempt(run.path(), control);
      // Rank 1 brings what rank 0 already has, or nothing.
      RankSlices slices(model, 0, overlap ? 1 : 2);
      if (control.rank() == 1 && !overlap) slices.to_save().clear();
      save_checkpoint(testing::sample_request(run.path(), slices.to_save(), {}), control);
    });
    EXPECT_THAT(errors[0], HasSubstr(overlap ? "overlap" : "of 60 elements"));
    EXPECT_EQ(errors[1], errors[0]);
    EXPECT_TRUE(list_steps(posix_file_system(), run.path()).empty());
    EXPECT_FALSE(std::filesystem::exists(run.path() / "ckpt" / "step-00000060.a1.tmp"));
  }
}

}  // namespace
}  // namespace ferry
