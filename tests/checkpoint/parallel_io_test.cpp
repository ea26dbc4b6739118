// Several threads write and read the same bytes as one, whatever they race for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "checkpoint/forwarding_file_system.h"
#include "checkpoint/shard_file.h"
#include "tests/checkpoint/saved_runs.h"
#include "tests/support/damage.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::RankSlices;
using testing::SampleModel;
using testing::TempDir;

std::string content(const Path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string text_of(const ShardReport& report) {
  std::string text = to_json(report.file).dump();
  for (const StoredTensor& tensor : report.tensors) text += to_json(tensor).dump();
  return text;
}

/// The sample model with tensors of many blocks: one whose slices are aligned in the file, one
/// whose are not, one that ranks cut in the middle of rows.
SampleModel large_model() {
  SampleModel model;
  const auto enlarge = [](testing::SampleTensor& tensor, Shape shape) {
    tensor.shape = shape;
    tensor.bytes.resize(static_cast<size_t>(shape.numel()) * size_of(tensor.dtype));
    uint32_t word = 7;
    for (char& byte : tensor.bytes) {
      word = word * 1664525u + 1013904223u;
      byte = static_cast<char>(word >> 24);
    }
  };
  enlarge(model.tensors()[0], {4500, 1000});
  enlarge(model.tensors()[1], {4, 60, 500});
  enlarge(model.tensors()[2], {600, 700});
  return model;
}

constexpr int64_t kChunk = 64 << 10;

TEST(ParallelIo, AnyNumberOfThreadsWritesTheSameFile) {
  const TempDir dir;
  const SampleModel model = large_model();
  RankSlices slices(model, 1, 3);
  std::string file, report;
  for (const int threads : {1, 2, 3, 8}) {
    const std::string name = concat("shard-0000", threads, ".h5");
    ShardReport written =
        write_shard(posix_file_system(), dir.path(), name, slices.to_save(), kChunk, threads);
    written.file.name = "shard";
    if (threads == 1) {
      file = content(dir / name);
      report = text_of(written);
      continue;
    }
    EXPECT_TRUE(content(dir / name) == file) << threads << " threads";
    EXPECT_EQ(text_of(written), report) << threads << " threads";
  }
}

/// Gives each byte once, and spoils the memory after it has been read.
class ReadOnce final : public SliceSource {
 public:
  const void* read(const void* data, int64_t bytes, void* scratch) override {
    std::memcpy(scratch, data, static_cast<size_t>(bytes));
    std::memset(const_cast<void*>(data), 0xee, static_cast<size_t>(bytes));
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(given_.emplace(data, bytes).second) << "asked for twice";
    return scratch;
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [data, count] : given_) sum += count;
    return sum;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, int64_t> given_;
};

TEST(ParallelIo, ASourceIsAskedForEachByteOnce) {
  const TempDir dir;
  const SampleModel model = large_model();
  RankSlices expected_slices(model, 0, 1);
  const ShardReport expected = write_shard(posix_file_system(), dir.path(), "shard-00000.h5",
                                           expected_slices.to_save(), kChunk, 2);
  RankSlices slices(model, 0, 1);
  ReadOnce source;
  int64_t total = 0;
  for (SliceToSave& slice : slices.to_save()) {
    slice.source = &source;
    total += slice.extent.numel() * static_cast<int64_t>(size_of(slice.dtype));
  }
  ShardReport written =
      write_shard(posix_file_system(), dir.path(), "shard-00001.h5", slices.to_save(), kChunk, 3);
  written.file.name = expected.file.name;
  EXPECT_EQ(text_of(written), text_of(expected));
  EXPECT_TRUE(content(dir / "shard-00001.h5") == content(dir / "shard-00000.h5"));
  EXPECT_EQ(source.bytes(), total);
}

class ParallelLoad : public ::testing::Test {
 protected:
  ParallelLoad() : model_(large_model()) {
    RankSlices slices(model_, 0, 1);
    testing::SaveOptions options;
    options.attempt = testing::begin(run_.path());
    options.chunk_bytes = kChunk;
    SoloControl control;
    directory_ =
        save_checkpoint(testing::sample_request(run_.path(), slices.to_save(), options), control)
            .directory;
  }

  testing::TempDir run_;
  SampleModel model_;
  Path directory_;
};

TEST_F(ParallelLoad, AllSlicesAtOnce) {
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  for (const int threads : {1, 2, 5}) {
    std::vector<std::vector<char>> memory;
    std::vector<SliceToLoad> wanted;
    std::vector<std::vector<char>> expected;
    for (int rank = 0; rank < 3; ++rank) {
      for (const testing::SampleTensor& tensor : model_.tensors()) {
        const Box box = SampleModel::box_of(tensor, rank, 3);
        expected.push_back(cut(tensor, box));
        memory.emplace_back(expected.back().size(), 'x');
        wanted.push_back({tensor.name, tensor.dtype, tensor.shape, box.offset, box.extent,
                          memory.back().data()});
      }
    }
    int64_t bytes = 0;
    for (const auto& part : expected) bytes += static_cast<int64_t>(part.size());
    EXPECT_EQ(checkpoint.load(wanted, threads).bytes, bytes);
    EXPECT_TRUE(memory == expected) << threads << " threads";
  }
}

/// Counts what is read and how large the buffers are.
class CountingFileSystem;
class CountingFile final : public File {
 public:
  CountingFile(CountingFileSystem& owner, std::unique_ptr<File> real)
      : owner_(owner), real_(std::move(real)) {}
  void write_at(const void*, size_t, int64_t) override { FAIL(); }
  void read_at(void* data, size_t bytes, int64_t position) const override;
  int64_t size() const override { return real_->size(); }
  void sync() override { FAIL(); }
  void drop_cache() override { real_->drop_cache(); }
  void close() override { real_->close(); }

 private:
  CountingFileSystem& owner_;
  std::unique_ptr<File> real_;
};

class CountingFileSystem final : public ForwardingFileSystem {
 public:
  std::unique_ptr<File> open(const Path& path) override {
    return std::make_unique<CountingFile>(*this, real_.open(path));
  }

  void count(const void* data, size_t bytes, int64_t position) {
    const std::lock_guard lock(mutex_);
    largest_ = std::max(largest_, static_cast<int64_t>(bytes));
    const auto* place = static_cast<const char*>(data);
    if (place < wanted_.data() || place >= wanted_.data() + wanted_.size()) buffers_.insert(data);
    EXPECT_TRUE(places_.insert(position).second) << "byte " << position << " is read twice";
  }
  /// What is read straight into the caller's memory needs no buffer.
  void reset(std::span<const char> wanted) {
    wanted_ = wanted;
    places_.clear();
    buffers_.clear();
    largest_ = 0;
  }
  size_t num_buffers() const { return buffers_.size(); }
  size_t num_reads() const { return places_.size(); }
  int64_t largest() const { return largest_; }

 private:
  std::mutex mutex_;
  std::span<const char> wanted_;
  std::set<const void*> buffers_;
  std::set<int64_t> places_;
  int64_t largest_ = 0;
};

void CountingFile::read_at(void* data, size_t bytes, int64_t position) const {
  owner_.count(data, bytes, position);
  real_->read_at(data, bytes, position);
}

TEST_F(ParallelLoad, TakesMemoryForAChunkPerThreadAndReadsEachChunkOnce) {
  CountingFileSystem counting;
  const Checkpoint checkpoint = Checkpoint::open(directory_, counting);
  const testing::SampleTensor& tensor = model_.tensors()[0];
  // Two halves that share a chunk, columns that share all of them.
  std::vector<char> memory(2 * tensor.bytes.size());
  const std::vector<SliceToLoad> wanted = {
      {tensor.name, tensor.dtype, tensor.shape, {0, 0}, {2250, 1000}, memory.data()},
      {tensor.name,
       tensor.dtype,
       tensor.shape,
       {2250, 0},
       {2250, 1000},
       memory.data() + tensor.bytes.size() / 2},
      {tensor.name,
       tensor.dtype,
       tensor.shape,
       {0, 3},
       {4500, 1},
       memory.data() + tensor.bytes.size()}};
  for (const int threads : {1, 3}) {
    counting.reset(memory);
    checkpoint.load(wanted, threads);
    EXPECT_LE(counting.num_buffers(), static_cast<size_t>(threads));
    EXPECT_LE(counting.largest(), kChunk);
    EXPECT_EQ(counting.num_reads(), (tensor.bytes.size() + kChunk - 1) / kChunk);
    EXPECT_EQ(std::memcmp(memory.data(), tensor.bytes.data(), tensor.bytes.size()), 0);
  }
}

TEST_F(ParallelLoad, TheFirstDamageIsNamed) {
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  const StoredSlice& slice = checkpoint.manifest().tensors[0].slices[0];
  ASSERT_GT(slice.chunks.size(), 20u);
  for (const int64_t chunk : {19, 5, 11})
    testing::flip_bit(directory_ / "shard-00000.h5", slice.address + chunk * kChunk + 17, 3);
  const testing::SampleTensor& tensor = model_.tensors()[0];
  std::vector<char> memory(tensor.bytes.size());
  const SliceToLoad wanted{tensor.name, tensor.dtype, tensor.shape,
                           {0, 0},      {4500, 1000}, memory.data()};
  for (const int threads : {1, 2, 4}) {
    for (int repetition = 0; repetition < 5; ++repetition) {
      EXPECT_THAT(testing::storage_error([&] {
                    checkpoint.load({&wanted, 1}, threads);
                  }),
                  HasSubstr("(chunk 5 of "));
      EXPECT_THAT(
          testing::storage_error([&] { checkpoint.verify_file(0, false, nullptr, threads); }),
          HasSubstr("(chunk 5 of "));
    }
  }
}

TEST_F(ParallelLoad, TensorDigestsAreTheSameForAnyNumberOfThreads) {
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  for (const int threads : {1, 2, 4}) {
    std::vector<Digest128> sums(checkpoint.manifest().tensors.size());
    checkpoint.verify_file(0, true, &sums, threads);
    for (size_t t = 0; t < sums.size(); ++t)
      EXPECT_EQ(sums[t], checkpoint.manifest().tensors[t].digest) << threads << " threads";
  }
}

}  // namespace
}  // namespace ferry
