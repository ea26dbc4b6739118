// Bits flipped anywhere, and files cut anywhere: found by verifying, and never loaded. The long
// form runs with FERRY_LONG_DAMAGE=1.

#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint/latest.h"
#include "tests/checkpoint/saved_runs.h"
#include "tests/support/damage.h"

namespace ferry {
namespace {

using testing::SampleModel;

bool is_long() { return std::getenv("FERRY_LONG_DAMAGE") != nullptr; }

class RandomDamage : public ::testing::Test {
 protected:
  RandomDamage() {
    // Large enough that most of the bytes belong to tensors.
    for (testing::SampleTensor& tensor : model_.tensors()) {
      if (tensor.name != "model/embedding/weight") continue;
      tensor.shape = {200, 60};
      tensor.bytes.assign(200 * 60 * 4, 'e');
    }
    directory_ = testing::save_with_ranks(2, run_.path(), model_).directory;
  }

  /// Whether verifying finds damage, and says in which file.
  ::testing::AssertionResult is_found(const Path& file) {
    const std::string text = testing::storage_error([&] { Checkpoint::open(directory_).verify(); });
    if (text.find(file.filename().native()) != std::string::npos)
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << text;
  }

  /// Whether loading all tensors fails or gives what was saved.
  bool loads_nothing_wrong() {
    try {
      return holds(Checkpoint::open(directory_), model_);
    } catch (const Error& error) {
      return error.code() == ExitCode::Storage;
    }
  }

  /// Whether a start passes over it.
  bool is_rejected() {
    SoloControl control;
    const Latest latest = find_latest(run_.path(), control);
    return !latest.checkpoint && latest.rejected.size() == 1;
  }

  testing::TempDir run_;
  SampleModel model_;
  Path directory_;
};

TEST_F(RandomDamage, EveryFlippedBitIsFoundBeforeUse) {
  int in_tensors = 0;
  const int count = is_long() ? 2000 : 200;
  for (const testing::BitPlace& place : testing::random_bits(directory_, count, 20260715)) {
    const testing::FlippedBit flipped(place.path, place.byte, place.bit);
    ASSERT_TRUE(is_found(place.path)) << flipped.text();
    ASSERT_TRUE(loads_nothing_wrong()) << flipped.text();
    ASSERT_TRUE(is_rejected()) << flipped.text();
    in_tensors += place.path.filename().native().starts_with("shard-");
  }
  EXPECT_GT(in_tensors, count / 4);
  Checkpoint::open(directory_).verify();
  EXPECT_TRUE(holds(Checkpoint::open(directory_), model_));
}

TEST_F(RandomDamage, EveryTruncationIsFoundBeforeUse) {
  int count = 0;
  for (const Path& file : testing::files_of(directory_)) {
    const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
    std::vector<int64_t> lengths{size - 1};
    for (int64_t bytes = 0; bytes < size; bytes += is_long() ? 512 : 4096) lengths.push_back(bytes);
    for (const int64_t bytes : lengths) {
      const testing::Truncated truncated(file, bytes);
      ASSERT_TRUE(is_found(file)) << file << " of " << bytes << " bytes";
      ASSERT_TRUE(loads_nothing_wrong()) << file << " of " << bytes << " bytes";
      ASSERT_TRUE(is_rejected()) << file << " of " << bytes << " bytes";
      ++count;
    }
  }
  EXPECT_GT(count, 20);
  Checkpoint::open(directory_).verify();
}

}  // namespace
}  // namespace ferry
