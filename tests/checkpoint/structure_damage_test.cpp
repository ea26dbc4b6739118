#include "checkpoint/structure_damage.h"

#include <gtest/gtest.h>

#include "checkpoint/shard_file.h"
#include "tests/checkpoint/saved_runs.h"
#include "tests/support/damage.h"

namespace ferry {
namespace {

const std::map<std::string, std::string> kDescriptions = {{"model", "weights of a test"}};
const std::map<std::string, std::string> kAliases = {{"second", "model"}};

class Structure : public ::testing::Test {
 protected:
  Structure()
      : directory_(testing::save_with_ranks(2, run_.path(), testing::SampleModel()).directory) {}

  /// With the descriptions and aliases of what save_with_ranks saves, which has none.
  std::optional<StructureDamage> find(int file_idx) {
    return find_structure_damage(directory_, manifest(), file_idx, {}, kAliases);
  }
  Manifest manifest() const { return Checkpoint::open(directory_).manifest(); }

  testing::TempDir run_;
  Path directory_;
};

TEST_F(Structure, IntactFilesHaveNone) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(find(i)) << i;
}

TEST_F(Structure, EveryByteOutsideTheSlicesIsNamed) {
  const Manifest manifest = this->manifest();
  ASSERT_EQ(manifest.files.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const StoredFile& file = manifest.files[static_cast<size_t>(i)];
    const std::vector<Region> regions = regions_of(manifest, i);
    int count = 0;
    for (int64_t byte = 0; byte < file.bytes; byte += 211) {
      const bool in_slice = std::any_of(regions.begin(), regions.end(), [&](const Region& region) {
        return byte >= region.address && byte < region.address + region.bytes;
      });
      if (in_slice) continue;
      const testing::FlippedBit flipped(directory_ / file.name, byte, static_cast<int>(byte % 8));
      const auto damage = find(i);
      ASSERT_TRUE(damage) << flipped.text();
      EXPECT_EQ(damage->first_byte, byte) << flipped.text();
      EXPECT_EQ(damage->num_bytes, 1) << flipped.text();
      ++count;
    }
    EXPECT_GT(count, 5) << file.name;
  }
}

TEST_F(Structure, SeveralBytesAreCountedFromTheFirst) {
  const Path global = directory_ / "global.h5";
  const testing::FlippedBit one(global, 700, 1), two(global, 64, 2), three(global, 900, 0);
  const auto damage = find(2);
  ASSERT_TRUE(damage);
  EXPECT_EQ(damage->first_byte, 64);
  EXPECT_EQ(damage->num_bytes, 3);
}

TEST_F(Structure, WhatCannotBeMadeAgainIsNotGuessed) {
  const testing::FlippedBit flipped(directory_ / "global.h5", 64, 2);
  EXPECT_FALSE(find_structure_damage(directory_, manifest(), 2, kDescriptions, kAliases));
  Manifest other = manifest();
  other.files[0].structure.low ^= 1;  // as of a file of another library
  const testing::FlippedBit shard(directory_ / "shard-00000.h5", 16, 2);
  EXPECT_FALSE(find_structure_damage(directory_, other, 0, {}, {}));
}

TEST_F(Structure, AliasesAndDescriptionsAreWritten) {
  testing::RankSlices slices(testing::SampleModel(), 0, 1);
  testing::SaveOptions options;
  options.step = 90;
  SoloControl control;
  options.attempt = begin_attempt(run_.path(), control).number;
  SaveRequest request = testing::sample_request(run_.path(), slices.to_save(), options);
  request.descriptions = kDescriptions;
  request.aliases = kAliases;
  const Path directory = save_checkpoint(request, control).directory;
  const testing::FlippedBit flipped(directory / "global.h5", 1234, 2);
  const auto damage = find_structure_damage(directory, Checkpoint::open(directory).manifest(), 1,
                                            kDescriptions, kAliases);
  ASSERT_TRUE(damage);
  EXPECT_EQ(damage->first_byte, 1234);
}

}  // namespace
}  // namespace ferry
