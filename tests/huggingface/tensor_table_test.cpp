#include "huggingface/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TensorTable, NamesWhatIsMissingDifferentOrUnmatched) {
  const std::map<std::string, Shape> wanted = {{"a", {2}}, {"b", {2, 3}}, {"c", {4}}, {"d", {5}}};
  std::map<std::string, TensorType> found = {{"a", {DType::F32, {2}}},
                                             {"b", {DType::BF16, {3, 2}}},
                                             {"c", {DType::I32, {4}}},
                                             {"e", {DType::F32, {6}}}};
  const std::string text = error_of([&] {
    require_same_tensors("DIR is bad", wanted, found, {DType::F32, DType::BF16});
  });
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("4: error: DIR is bad"), ContainsRegex("b +f32.bf16 .2, 3. +bf16 .3, 2."),
            ContainsRegex("c +f32.bf16 .4. +i32 .4."), ContainsRegex("d +.* +missing"),
            ContainsRegex("e +not of this model +f32 .6."), Not(ContainsRegex("\n  a "))));
  found = {{"a", {DType::F32, {2}}}};
  EXPECT_EQ(error_of([&] {
              require_same_tensors("", {{"a", {2}}}, found, {DType::F32});
            }),
            "no error");
}

TEST(TensorTable, IsCut) {
  std::map<std::string, Shape> wanted;
  for (int i = 0; i < 50; ++i) wanted[concat("t", i)] = {1};
  EXPECT_THAT(error_of([&] { require_same_tensors("x", wanted, {}, {DType::F32}); }),
              HasSubstr("... and 10 more"));
}

}  // namespace
}  // namespace ferry
