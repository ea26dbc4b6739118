#include "app/ckpt_verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/saved_values.h"
#include "tests/support/damage.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CkptVerify : public ::testing::Test {
 protected:
  CkptVerify()
      : directory_(testing::save_values(
            run_.path(), 30,
            {testing::counted_values("model/a", {10, 6}), testing::counted_values("model/b", {8})},
            {}, /*num_ranks=*/2)),
        manifest_(Checkpoint::open(directory_).manifest()) {}
  std::string complaint() {
    return testing::error_of(ExitCode::Storage, [&] { verify_checkpoint(directory_); });
  }
  /// The slice that rank 1 wrote.
  const StoredSlice& second_slice(size_t tensor) { return manifest_.tensors[tensor].slices[1]; }
  /// What is said about such a slice.
  std::string lost(size_t tensor, const std::string& box) {
    const StoredSlice& slice = second_slice(tensor);
    const int64_t end = slice.address + manifest_.tensors[tensor].bytes(slice);
    return concat("\n  lost: ", manifest_.tensors[tensor].name, ' ', box, ", bytes ", slice.address,
                  " to ", end - 1, " of shard-00001.h5");
  }

  testing::TempDir run_;
  Path directory_;
  Manifest manifest_;
};

TEST_F(CkptVerify, GivesWhatIsIntact) { EXPECT_EQ(verify_checkpoint(directory_).step(), 30); }

TEST_F(CkptVerify, NamesFileTensorAndOffsetOfAFlippedBit) {
  const int64_t address = second_slice(0).address;
  testing::flip_bit(directory_ / "shard-00001.h5", address + 100, 3);
  EXPECT_THAT(complaint(), AllOf(HasSubstr((directory_ / "shard-00001.h5").native()),
                                 HasSubstr(concat("bytes ", address + 64, " to ", address + 119)),
                                 HasSubstr("(chunk 1 of model/a@5,0)"), Not(HasSubstr("lost"))));
}

TEST_F(CkptVerify, NamesTheTensorsOfAMissingShard) {
  std::filesystem::remove(directory_ / "shard-00001.h5");
  EXPECT_THAT(complaint(), AllOf(HasSubstr("shard-00001.h5 is missing"),
                                 HasSubstr(lost(0, "[5:10, 0:6] of [10, 6]")),
                                 HasSubstr(lost(1, "[4:8] of [8]")), Not(HasSubstr("more"))));
}

TEST_F(CkptVerify, NamesTheTensorsThatATruncatedShardHasNotGot) {
  const Path shard = directory_ / "shard-00001.h5";
  const size_t last = second_slice(0).address > second_slice(1).address ? 0 : 1;
  std::filesystem::resize_file(shard, static_cast<uintmax_t>(second_slice(last).address + 1));
  EXPECT_THAT(complaint(), AllOf(HasSubstr("it is truncated"),
                                 HasSubstr("lost: " + manifest_.tensors[last].name),
                                 Not(HasSubstr("lost: " + manifest_.tensors[1 - last].name))));
}

TEST_F(CkptVerify, FilesWithoutTensorsLoseNone) {
  std::filesystem::remove(directory_ / "global.h5");
  EXPECT_THAT(complaint(), AllOf(HasSubstr("global.h5 is missing"), Not(HasSubstr("lost"))));
}

TEST_F(CkptVerify, HalfADirectory) {
  std::filesystem::remove(directory_ / "MANIFEST.json");
  EXPECT_THAT(complaint(), HasSubstr("has no MANIFEST.json: it is not a complete checkpoint"));
}

TEST_F(CkptVerify, ManyLostTensorsAreCounted) {
  std::vector<testing::StoredValues> values;
  for (int i = 0; i < 11; ++i) values.push_back(testing::counted_values(concat("t", i), {2}));
  directory_ = testing::save_values(run_ / "many", 1, values);
  std::filesystem::remove(directory_ / "shard-00000.h5");
  EXPECT_THAT(complaint(), AllOf(HasSubstr("lost: t6 "), Not(HasSubstr("lost: t7 ")),
                                 HasSubstr("\n  lost: 3 more")));
}

TEST_F(CkptVerify, NamesTheByteOfAShardThatIsNoTensors) {
  testing::flip_bit(directory_ / "shard-00001.h5", 40, 3);
  EXPECT_THAT(complaint(),
              AllOf(HasSubstr("its HDF5 structure does not match the digest"),
                    HasSubstr("\n  damaged: byte 40 of shard-00001.h5, of 1 that are not what was "
                              "written\n  why : these bytes are no tensor's"),
                    Not(HasSubstr("lost"))));
}

TEST_F(CkptVerify, NamesTheRangesOfAFileThatItCannotMakeAgain) {
  // Without the descriptions that a run gives.
  testing::flip_bit(directory_ / "global.h5", 40, 3);
  const int64_t end = manifest_.files[2].bytes - 1;
  ASSERT_EQ(manifest_.files[2].name, "global.h5");
  EXPECT_THAT(complaint(),
              HasSubstr(concat("\n  damaged: global.h5 somewhere in bytes 0 to ", end)));
}

TEST_F(CkptVerify, AllDamagedStructuresAreNamed) {
  testing::flip_bit(directory_ / "shard-00000.h5", 20, 3);
  testing::flip_bit(directory_ / "shard-00001.h5", 24, 3);
  testing::flip_bit(directory_ / "shard-00001.h5", 25, 3);
  EXPECT_THAT(complaint(), AllOf(HasSubstr("damaged: byte 20 of shard-00000.h5, of 1 that"),
                                 HasSubstr("damaged: byte 24 of shard-00001.h5, of 2 that")));
}

}  // namespace
}  // namespace ferry
