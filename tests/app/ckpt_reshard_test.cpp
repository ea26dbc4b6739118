#include "app/ckpt_reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "app/ckpt_diff.h"
#include "checkpoint/forwarding_file_system.h"
#include "tests/app/saved_values.h"
#include "tests/support/damage.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using testing::counted_values;
using testing::error_of;
using ::testing::HasSubstr;
using testing::save_values;
using testing::StoredValues;

class CkptReshard : public ::testing::Test {
 protected:
  CkptReshard() {
    values_ = {counted_values("model/embedding/weight", {10, 6}),
               counted_values("model/experts/weight", {1, 1, 40}),
               counted_values("model/norm/weight", {7}),
               counted_values("optimizer/exp_avg/embedding/weight", {10, 6}),
               testing::stored_values<uint8_t>("state/mask", {3}, {1, 2, 3})};
  }
  Checkpoint saved(const std::string& name, int num_ranks, int cut = 0) {
    return Checkpoint::open(save_values(dir_ / name, 60, values_,
                                        {{"lr", 1.25e-3}, {"schedule", std::string("cosine")}},
                                        num_ranks, cut));
  }
  Path out(const std::string& name) { return dir_ / name; }

  testing::TempDir dir_;
  std::vector<StoredValues> values_;
};

int num_shards(const Checkpoint& checkpoint) {
  return static_cast<int>(checkpoint.manifest().files.size()) - 1;  // and global.h5
}

TEST_F(CkptReshard, AnyNumberOfWritersGivesTheSameState) {
  int count = 0;
  for (const auto& [ranks, cut] : {std::pair{1, 0}, {2, 0}, {3, 1}}) {
    const Checkpoint source = saved(concat("source", ++count), ranks, cut);
    for (const int writers : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(concat(ranks, " ranks to ", writers));
      const SaveReport report =
          reshard_checkpoint(source, out(concat("out", count, "-", writers)), writers);
      EXPECT_EQ(report.root, source.root());
      const Checkpoint result = Checkpoint::open(report.directory);
      result.verify();
      EXPECT_EQ(num_shards(result), writers);
      EXPECT_EQ(result.root(), source.root());
      EXPECT_TRUE(diff_checkpoints(source, result).empty());
      EXPECT_EQ(result.step(), 60);
      EXPECT_EQ(result.state(), source.state());
      EXPECT_EQ(result.manifest().config, source.manifest().config);
      EXPECT_EQ(result.manifest().layout, source.manifest().layout);
      EXPECT_EQ(result.manifest().chunk_bytes, source.manifest().chunk_bytes);
    }
  }
}

TEST_F(CkptReshard, AndBackAgain) {
  const Checkpoint source = saved("source", 2, 1);
  const Checkpoint five = Checkpoint::open(reshard_checkpoint(source, out("five"), 5).directory);
  const Checkpoint one = Checkpoint::open(reshard_checkpoint(five, out("one"), 1).directory);
  EXPECT_EQ(num_shards(one), 1);
  EXPECT_TRUE(diff_checkpoints(source, one).empty());
}

TEST_F(CkptReshard, WritersShareTheBytes) {
  const Checkpoint source = saved("source", 1);
  for (const int writers : {1, 2, 5, 16}) {
    const auto shares = deal_slices(source.manifest(), writers);
    ASSERT_EQ(shares.size(), static_cast<size_t>(writers));
    int64_t total = 0, largest = 0;
    for (const auto& share : shares) {
      int64_t bytes = 0;
      for (const SlicePart& part : share)
        bytes += part.box.numel() * static_cast<int64_t>(size_of(part.tensor->dtype));
      total += bytes;
      largest = std::max(largest, bytes);
    }
    EXPECT_EQ(total, (60 + 40 + 7 + 60) * 4 + 3);
    EXPECT_LE(largest, total / writers + 6 * 4) << writers << " writers";  // a row of six floats
  }
}

TEST_F(CkptReshard, MoreWritersThanElements) {
  const Path few = save_values(dir_ / "few", 1, {counted_values("t", {3})});
  const Checkpoint result =
      Checkpoint::open(reshard_checkpoint(Checkpoint::open(few), out("out"), 8).directory);
  EXPECT_EQ(num_shards(result), 3);
  EXPECT_EQ(result.root(), Checkpoint::open(few).root());
}

TEST_F(CkptReshard, WrongNumbersOfWriters) {
  const Checkpoint source = saved("source", 1);
  for (const int writers : {-1, 0, kMaxWriters + 1}) {
    EXPECT_THAT(error_of(ExitCode::Usage, [&] { reshard_checkpoint(source, out("out"), writers); }),
                HasSubstr(concat("error: --writers ", writers,
                                 "\n  why : a checkpoint is written by 1 to ", kMaxWriters)));
    EXPECT_FALSE(std::filesystem::exists(out("out")));
  }
}

TEST_F(CkptReshard, NothingIsOverwritten) {
  const Checkpoint source = saved("source", 1);
  EXPECT_THAT(error_of(ExitCode::Usage, [&] { reshard_checkpoint(source, out("source"), 2); }),
              HasSubstr("source exists\n  why : the result is the only checkpoint"));
  EXPECT_EQ(source.root(), Checkpoint::open(source.directory()).root());
}

TEST_F(CkptReshard, DamageIsNotCopied) {
  const Checkpoint source = saved("source", 1);
  const int64_t address = source.manifest().tensors[0].slices[0].address;
  testing::flip_bit(source.directory() / "shard-00000.h5", address, 5);
  EXPECT_THAT(error_of(ExitCode::Storage, [&] { reshard_checkpoint(source, out("out"), 2); }),
              HasSubstr("shard-00000.h5 is damaged"));
  EXPECT_FALSE(std::filesystem::exists(out("out")));
}

/// The real one, but somebody writes to a shard as soon as it has been verified.
class ChangingFileSystem final : public ForwardingFileSystem {
 public:
  explicit ChangingFileSystem(std::function<void()> change) : change_(std::move(change)) {}
  std::unique_ptr<File> open(const Path& path) override {
    // First for its size, then, after the shard, to be verified.
    if (path.filename() == "global.h5" && ++num_opened_ == 2) change_();
    return real_.open(path);
  }

 private:
  std::function<void()> change_;
  int num_opened_ = 0;
};

TEST_F(CkptReshard, WhatChangesMeanwhileIsNotTaken) {
  const Checkpoint saved_one = saved("source", 1);
  const int64_t address = saved_one.manifest().tensors[0].slices[0].address;
  ChangingFileSystem file_system(
      [&] { testing::flip_bit(saved_one.directory() / "shard-00000.h5", address, 5); });
  const Checkpoint source = Checkpoint::open(saved_one.directory(), file_system);
  EXPECT_THAT(error_of(ExitCode::Storage, [&] { reshard_checkpoint(source, out("out"), 2); }),
              HasSubstr("changed while it was read: stop what writes to it"));
  EXPECT_FALSE(std::filesystem::exists(out("out")));
}

TEST_F(CkptReshard, APlaceWhereNothingCanBeWritten) {
  const Checkpoint source = saved("source", 1);
  const Path file = source.directory() / "MANIFEST.json";
  EXPECT_THAT(error_of(ExitCode::Storage, [&] { reshard_checkpoint(source, file / "out", 2); }),
              HasSubstr("cannot create the directory"));
}

}  // namespace
}  // namespace ferry
