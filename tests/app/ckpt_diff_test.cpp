#include "app/ckpt_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/app/saved_values.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using testing::counted_values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::save_values;
using testing::stored_values;
using testing::StoredValues;

class CkptDiff : public ::testing::Test {
 protected:
  Checkpoint saved(const std::string& name, const std::vector<StoredValues>& values,
                   const State& state = {{"samples", int64_t{16}}}, int64_t step = 3) {
    return Checkpoint::open(save_values(dir_ / name, step, values, state));
  }
  TensorDifference only(const StoredValues& a, const StoredValues& b) {
    const std::string number = std::to_string(++count_);
    const CheckpointDifference difference =
        diff_checkpoints(saved("a" + number, {a}), saved("b" + number, {b}));
    CHECK(difference.tensors.size() == 1 && difference.scalars.empty());
    return difference.tensors[0];
  }

  testing::TempDir dir_;
  int count_ = 0;
};

TEST_F(CkptDiff, TheSameStateCutDifferentlyIsTheSame) {
  const std::vector<StoredValues> values = {counted_values("model/a", {6, 8}),
                                            counted_values("model/b", {2, 3, 4})};
  const Checkpoint a = saved("a", values);
  for (const int cut : {0, 1}) {
    const Checkpoint b = Checkpoint::open(
        save_values(dir_ / concat("b", cut), 3, values, a.state(), /*num_ranks=*/2, cut));
    const CheckpointDifference difference = diff_checkpoints(a, b);
    EXPECT_TRUE(difference.empty());
    EXPECT_EQ(difference.num_tensors, 2);
    EXPECT_EQ(difference.num_scalars, 2);  // samples and step
    EXPECT_EQ(a.root(), b.root());
  }
}

// Whatever the size of a block, and whoever stores the element.
TEST_F(CkptDiff, NumbersOfADifferentTensor) {
  const StoredValues before = counted_values("model/a", {3, 4, 5});
  std::vector<float> values(60);
  std::memcpy(values.data(), before.bytes.data(), 240);
  values[27] += 2;    // 27.5
  values[59] -= 1.5;  // 59.5
  const StoredValues after = stored_values("model/a", {3, 4, 5}, values);
  const Checkpoint a = saved("a", {before, counted_values("model/b", {4})});
  const Checkpoint b = Checkpoint::open(save_values(
      dir_ / "b", 3, {after, counted_values("model/b", {4})}, a.state(), /*num_ranks=*/2, 2));
  for (const int64_t block : {1, 2, 3, 5, 7, 10, 20, 40, 60, 1000}) {
    SCOPED_TRACE(block);
    const CheckpointDifference difference = diff_checkpoints(a, b, block);
    ASSERT_EQ(difference.tensors.size(), 1u);
    EXPECT_TRUE(difference.scalars.empty());
    const TensorDifference& tensor = difference.tensors[0];
    EXPECT_EQ(tensor.name, "model/a");
    EXPECT_EQ(tensor.mismatch, "");
    EXPECT_EQ(tensor.num_elements, 60);
    EXPECT_EQ(tensor.num_different, 2);
    EXPECT_EQ(tensor.largest_absolute, 2);
    EXPECT_EQ(tensor.largest_relative, 2 / 29.5);
    EXPECT_THAT(tensor.first, ElementsAre(1, 1, 2));
    EXPECT_EQ(tensor.first_a, 27.5);
    EXPECT_EQ(tensor.first_b, 29.5);
  }
}

TEST_F(CkptDiff, EveryTypeOfElement) {
  const auto check = [&](const StoredValues& a, const StoredValues& b, double from, double to) {
    const TensorDifference difference = only(a, b);
    EXPECT_THAT(difference.first, ElementsAre(1));
    EXPECT_EQ(difference.first_a, from);
    EXPECT_EQ(difference.first_b, to);
    EXPECT_EQ(difference.largest_absolute, std::abs(from - to));
  };
  const auto pair = [&]<class T>(T x, T y) {
    check(stored_values<T>("t", {2}, {x, x}), stored_values<T>("t", {2}, {x, y}),
          static_cast<double>(x), static_cast<double>(y));
  };
  pair(1.5f, -0.25f);
  pair(1.5, 1.25);
  pair(BFloat16(2.0f), BFloat16(3.0f));
  pair(int32_t{-7}, int32_t{8});
  pair(int64_t{1} << 40, int64_t{-1});
  pair(uint8_t{0}, uint8_t{255});
}

TEST_F(CkptDiff, BitsThatAreNoNumbers) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto one = [&](float a, float b) {
    return only(stored_values<float>("t", {1}, {a}), stored_values<float>("t", {1}, {b}));
  };
  EXPECT_EQ(one(0.0f, -0.0f).largest_absolute, 0);
  EXPECT_EQ(one(0.0f, -0.0f).largest_relative, 0);
  EXPECT_EQ(one(0.0f, -0.0f).num_different, 1);
  for (const float value : {nan, infinity, -infinity}) {
    EXPECT_EQ(one(1, value).largest_absolute, infinity) << value;
    EXPECT_EQ(one(value, 1).largest_relative, infinity) << value;
  }
  EXPECT_TRUE(diff_checkpoints(saved("x", {stored_values<float>("t", {1}, {nan})}),
                               saved("y", {stored_values<float>("t", {1}, {nan})}))
                  .empty());
}

TEST_F(CkptDiff, TensorsThatCannotBeCompared) {
  const Checkpoint a = saved("a", {counted_values("model/a", {4}), counted_values("model/b", {4}),
                                   counted_values("model/c", {4})});
  const Checkpoint b = saved("b", {stored_values<double>("model/b", {4}, {1, 2, 3, 4}),
                                   counted_values("model/c", {2, 2}), counted_values("x", {1})});
  const CheckpointDifference difference = diff_checkpoints(a, b);
  std::vector<std::string> texts;
  for (const TensorDifference& tensor : difference.tensors)
    texts.push_back(tensor.name + ": " + tensor.mismatch);
  EXPECT_THAT(texts, ElementsAre("model/a: only in the first", "model/b: f32 [4] and f64 [4]",
                                 "model/c: f32 [4] and f32 [2, 2]", "x: only in the second"));
  EXPECT_EQ(difference.num_tensors, 4);
}

TEST_F(CkptDiff, Scalars) {
  const std::vector<StoredValues> values = {counted_values("model/a", {4})};
  const Checkpoint a = saved(
      "a", values, {{"lr", 0.0}, {"name", std::string("x")}, {"old", int64_t{1}}, {"z", 1.5}}, 3);
  const Checkpoint b = saved(
      "b", values, {{"lr", -0.0}, {"name", std::string("y")}, {"new", int64_t{2}}, {"z", 1.5}}, 4);
  std::vector<std::string> texts;
  for (const ScalarDifference& scalar : diff_checkpoints(a, b).scalars)
    texts.push_back(scalar.name + ": " + scalar.a + " and " + scalar.b);
  EXPECT_THAT(texts, ElementsAre("(step): 3 and 4", "lr: 0 and -0", "name: x and y", "new:  and 2",
                                 "old: 1 and "));
}

TEST_F(CkptDiff, DamageIsNotADifference) {
  const std::vector<StoredValues> values = {counted_values("model/a", {4})};
  const Checkpoint a = saved("a", values), b = saved("b", values);
  std::filesystem::resize_file(b.directory() / "global.h5", 100);
  for (const bool swapped : {false, true}) {
    EXPECT_THAT(testing::error_of(ExitCode::Storage,
                                  [&] { diff_checkpoints(swapped ? b : a, swapped ? a : b); }),
                HasSubstr("global.h5 has 100 bytes"));
  }
}

}  // namespace
}  // namespace ferry
