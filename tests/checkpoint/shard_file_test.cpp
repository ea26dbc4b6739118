#include "checkpoint/shard_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/sample_model.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

/// Bytes of a file from an address on.
std::string bytes_at(const Path& path, int64_t address, size_t count) {
  std::string bytes(count, ' ');
  posix_file_system().open(path)->read_at(bytes.data(), count, address);
  return bytes;
}

TEST(ShardFile, SlicesLieWhereTheReportSays) {
  const testing::TempDir dir;
  const testing::SampleModel model;
  testing::RankSlices slices(model, 1, 2);
  const ShardReport report =
      write_shard(posix_file_system(), dir.path(), "shard-00001.h5", slices.to_save(), 32);
  EXPECT_EQ(report.file.bytes,
            static_cast<int64_t>(std::filesystem::file_size(dir / "shard-00001.h5")));
  EXPECT_EQ(report.tensors.size(), model.tensors().size());
  for (const StoredTensor& tensor : report.tensors) {
    const StoredSlice& stored = tensor.slices.front();
    for (const SliceToSave& slice : slices.to_save()) {
      if (slice.name != tensor.name) continue;
      const size_t count = static_cast<size_t>(tensor.bytes(stored));
      EXPECT_EQ(bytes_at(dir / "shard-00001.h5", stored.address, count),
                std::string(static_cast<const char*>(slice.data), count));
    }
  }
  EXPECT_EQ(report.tensors[0].slices[0].dataset, "model/embedding/weight@5,0");
  EXPECT_EQ(report.tensors[0].slices[0].chunks.size(), 4u);  // 120 bytes
}

TEST(ShardFile, TheFormatIsBounded) {
  const testing::TempDir dir;
  testing::RankSlices slices(testing::SampleModel(), 0, 1);
  write_shard(posix_file_system(), dir.path(), "shard-00000.h5", slices.to_save(), 4096);
  const std::string start = bytes_at(dir / "shard-00000.h5", 0, 12);
  EXPECT_EQ(start.substr(0, 8), "\x89HDF\r\n\x1a\n");
  EXPECT_EQ(start[8], 3);   // superblock version
  EXPECT_EQ(start[11], 0);  // not marked as open for writing
}

TEST(ShardFile, BadSlicesAreRefused) {
  const testing::TempDir dir;
  const float value = 0;
  const auto complaint = [&](const SliceToSave& slice) -> std::string {
    try {
      write_shard(posix_file_system(), dir.path(), "shard-00000.h5", {&slice, 1}, 4096);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(complaint({"/model/x", DType::F32, {1}, {0}, {1}, &value}), HasSubstr("'/model/x'"));
  EXPECT_THAT(complaint({"x", DType::F32, {1}, {1}, {1}, &value}), HasSubstr("1 + 1 exceeds 1"));
  EXPECT_THAT(complaint({"x", DType::F32, {1}, {0}, {1}, nullptr}), HasSubstr("x has no data"));
}

TEST(ShardFile, TheStructureDigestCoversAllButTheRegions) {
  const testing::TempDir dir;
  write_text(posix_file_system(), dir / "file", "0123456789");
  const auto file = posix_file_system().open(dir / "file");
  EXPECT_EQ(structure_digest(*file, {}), chunk_digest("0123456789", 10));
  const std::vector<Region> regions = {{0, 2}, {4, 3}, {7, 1}};
  EXPECT_EQ(structure_digest(*file, regions), chunk_digest("2389", 4));
}

}  // namespace
}  // namespace ferry
