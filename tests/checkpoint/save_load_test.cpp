#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "checkpoint/latest.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/sample_model.h"
#include "tests/checkpoint/thread_control.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::RankSlices;
using testing::SampleModel;
using testing::SampleTensor;
using testing::TempDir;

int64_t begin(const Path& run_dir) {
  SoloControl control;
  return begin_attempt(run_dir, control).number;
}

SaveReport save_with_ranks(int size, const Path& run_dir, const SampleModel& model) {
  SaveReport report;
  const auto errors = testing::run_ranks(size, [&](Control& control) {
    const int64_t attempt = begin_attempt(run_dir, control).number;
    RankSlices slices(model, control.rank(), size);
    testing::SaveOptions options;
    options.attempt = attempt;
    const SaveReport mine =
        save_checkpoint(testing::sample_request(run_dir, slices.to_save(), options), control);
    if (control.rank() == size - 1) report = mine;  // every rank has the whole report
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return report;
}

std::string content_of(const Path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(SaveLoad, RoundTripKeepsEveryBit) {
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

TEST(SaveLoad, ReportCountsBytesOnDisk) {
  const TempDir run;
  begin(run.path());
  const SaveReport report = testing::save_solo(run.path(), SampleModel());
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(report.directory)) {
    if (entry.path().extension() == ".h5") bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(report.bytes, bytes);
}

TEST(SaveLoad, AnyNumberOfWritersGivesTheSameRootAndContent) {
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

TEST(SaveLoad, RootDependsOnTensorsScalarsAndStepOnly) {
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

TEST(SaveLoad, SameStateGivesIdenticalFiles) {
  const TempDir first, second;
  const SampleModel model;
  const SaveReport a = save_with_ranks(2, first.path(), model);
  const SaveReport b = save_with_ranks(2, second.path(), model);
  for (const char* name : {"shard-00000.h5", "shard-00001.h5", "global.h5"}) {
    EXPECT_EQ(content_of(a.directory / name), content_of(b.directory / name)) << name;
  }
}

TEST(SaveLoad, OrderOfSlicesDoesNotMatter) {
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

TEST(SaveLoad, EveryBoxOfATensorCanBeLoaded) {
  const TempDir run;
  const SampleModel model;
  const Checkpoint checkpoint = Checkpoint::open(save_with_ranks(3, run.path(), model).directory);
  for (const SampleTensor& tensor : model.tensors()) {
    if (tensor.shape.rank() != 2) continue;
    for (int64_t r0 = 0; r0 < tensor.shape[0]; ++r0) {
      for (int64_t r1 = r0 + 1; r1 <= tensor.shape[0]; ++r1) {
        for (int64_t c0 = 0; c0 < tensor.shape[1]; ++c0) {
          for (int64_t c1 = c0 + 1; c1 <= tensor.shape[1]; ++c1) {
            const Box box{tensor.shape, {r0, c0}, {r1 - r0, c1 - c0}};
            std::vector<char> bytes(static_cast<size_t>(box.numel()) * size_of(tensor.dtype));
            const SliceToLoad wanted{tensor.name, tensor.dtype, tensor.shape,
                                     box.offset,  box.extent,   bytes.data()};
            EXPECT_EQ(checkpoint.load({&wanted, 1}).bytes, static_cast<int64_t>(bytes.size()));
            ASSERT_EQ(bytes, testing::cut(tensor, box)) << tensor.name << " " << to_string(box);
          }
        }
      }
    }
  }
}

TEST(SaveLoad, BoxesOfFourDims) {
  const TempDir run;
  const SampleModel model;
  const Checkpoint checkpoint = Checkpoint::open(save_with_ranks(2, run.path(), model).directory);
  const SampleTensor& tensor = model.tensors()[6];
  const Box box{tensor.shape, {1, 1, 0, 1}, {1, 2, 2, 2}};
  std::vector<char> bytes(static_cast<size_t>(box.numel()) * size_of(tensor.dtype));
  const SliceToLoad wanted{tensor.name, tensor.dtype, tensor.shape,
                           box.offset,  box.extent,   bytes.data()};
  checkpoint.load({&wanted, 1});
  EXPECT_EQ(bytes, testing::cut(tensor, box));
}

TEST(SaveLoad, SavingAStepAgainReplacesIt) {
  const TempDir run;
  begin(run.path());
  const std::string root = testing::save_solo(run.path(), SampleModel(1)).root;
  const SaveReport second = testing::save_solo(run.path(), SampleModel(2));
  EXPECT_NE(second.root, root);
  EXPECT_TRUE(testing::holds(Checkpoint::open(second.directory), SampleModel(2)));
  EXPECT_TRUE(std::filesystem::is_empty(run.path() / "ckpt" / "trash"));
}

TEST(SaveLoad, ParentIsRecorded) {
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

TEST(SaveLoad, GapsAndOverlapsAreRefusedOnEveryRank) {
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

TEST(SaveLoad, LoadNamesWhatDoesNotFit) {
  const TempDir run;
  begin(run.path());
  const Checkpoint checkpoint =
      Checkpoint::open(testing::save_solo(run.path(), SampleModel()).directory);
  float value = 0;
  SliceToLoad wanted{"model/absent", DType::F32, {1}, {0}, {1}, &value};
  EXPECT_THAT(testing::storage_error([&] {
                checkpoint.load({&wanted, 1});
              }),
              HasSubstr("has no tensor model/absent"));
  wanted = {"model/layers/0/norm/weight", DType::F32, {8}, {0}, {1}, &value};
  EXPECT_THAT(testing::storage_error([&] {
                checkpoint.load({&wanted, 1});
              }),
              HasSubstr("is f32 [7], but this model needs f32 [8]"));
  wanted = {"model/layers/0/norm/weight", DType::I32, {7}, {0}, {1}, &value};
  EXPECT_THAT(testing::storage_error([&] {
                checkpoint.load({&wanted, 1});
              }),
              HasSubstr("but this model needs i32 [7]"));
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
