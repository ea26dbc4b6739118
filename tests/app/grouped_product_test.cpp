#include "app/grouped_product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/devices.h"
#include "tests/support/error_of.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GroupedProductTest : public DeviceTest {
 protected:
  GroupedProduct product(GroupedPass pass, const std::vector<int64_t>& counts) {
    int64_t rows = 0;
    for (const int64_t count : counts) rows += count;
    const auto groups = static_cast<int64_t>(counts.size());
    const Shape weight{groups, 24, 16};
    return {pass,
            "fc1",
            pass == GroupedPass::Forward ? output({rows, 24}) : random({rows, 24}, 1),
            pass == GroupedPass::Dgrad ? output({rows, 16}) : random({rows, 16}, 2),
            pass == GroupedPass::Wgrad ? zeros(stream(), weight, accumulate()) : random(weight, 3),
            counts};
  }
};

// What is measured against each other computes the same.
TEST_P(GroupedProductTest, IsABatchOfDenseProductsIfGroupsAreEqual) {
  for (const auto pass : {GroupedPass::Forward, GroupedPass::Dgrad, GroupedPass::Wgrad}) {
    const GroupedProduct grouped = product(pass, {8, 8, 8}), dense = product(pass, {8, 8, 8});
    grouped.enqueue(stream(), grouped.offsets(stream()));
    dense.enqueue_batched(stream());
    const double step = epsilon_of(grouped.output().dtype());
    testing::expect_close(stream(), grouped.output(), dense.output(), step,
                          64 * epsilon_of(accumulate()));
  }
}

// Rows in place give the bits of their copies.
TEST_P(GroupedProductTest, ReadsTokensInPlace) {
  const std::vector<int32_t> slots{5, 0, 3, 1, 4, 2};  // of 3 tokens with two choices each
  const Tensor tokens = random({3, 16}, 4);
  for (const auto pass : {GroupedPass::Forward, GroupedPass::Wgrad}) {
    GroupedProduct copies = product(pass, {2, 0, 4}), gathered = product(pass, {2, 0, 4});
    gathered.x = tokens;
    gathered.slot_of_row = ints(slots, {6});
    copies.x = gathered.rows().contiguous(stream(), "test");
    for (GroupedProduct* made : {&copies, &gathered}) {
      if (pass == GroupedPass::Forward) {
        made->h = output({6, 12});
        made->prob = random_tensor(stream(), {6}, accumulate(), 5);
      }
      made->enqueue(stream(), made->offsets(stream()));
    }
    EXPECT_EQ(gathered.flops(), copies.flops());
    EXPECT_EQ(read_back_as_double(stream(), gathered.output()),
              read_back_as_double(stream(), copies.output()));
    if (pass == GroupedPass::Forward) {
      EXPECT_EQ(read_back_as_double(stream(), gathered.h), read_back_as_double(stream(), copies.h));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GroupedProductTest, device_cases(), case_name);

class GroupedProductChecks : public CpuTest {
 protected:
  GroupedProduct product(GroupedPass pass, int64_t rows, const std::vector<int64_t>& counts) {
    return {pass,
            "fc1",
            zeros(stream(), {rows, 5}, DType::F32),
            zeros(stream(), {rows, 3}, DType::F32),
            zeros(stream(), {static_cast<int64_t>(counts.size()), 5, 3}, DType::F32),
            counts};
  }
};

TEST_F(GroupedProductChecks, WritesWhatItsPassSays) {
  EXPECT_EQ(product(GroupedPass::Forward, 7, {7}).output().dim(1), 5);
  EXPECT_EQ(product(GroupedPass::Dgrad, 7, {7}).output().dim(1), 3);
  EXPECT_EQ(product(GroupedPass::Wgrad, 7, {7}).output().shape().rank(), 3);
}

TEST_F(GroupedProductChecks, CountsMultiplicationsAndAdditions) {
  EXPECT_EQ(product(GroupedPass::Forward, 7, {3, 4}).flops(), 2 * 7 * 5 * 3);
}

TEST_F(GroupedProductChecks, OffsetsAreSumsOfCounts) {
  const GroupedProduct made = product(GroupedPass::Forward, 7, {3, 0, 4});
  EXPECT_THAT(read_back<int32_t>(stream(), made.offsets(stream())), ElementsAre(0, 3, 3, 7));
}

TEST_F(GroupedProductChecks, NotEveryProductReadsTokensInPlace) {
  for (const auto pass : {GroupedPass::Forward, GroupedPass::Dgrad}) {
    GroupedProduct made = product(pass, 7, {7});
    made.slot_of_row = zeros(stream(), {7}, DType::I32);
    EXPECT_THAT(error_of([&] { made.enqueue(stream(), made.offsets(stream())); }),
                HasSubstr("fc1: rows in place are read by wgrad and forward with SwiGLU"));
    EXPECT_THAT(error_of([&] { made.enqueue_batched(stream()); }),
                HasSubstr("fc1: a dense product of rows in place"));
  }
}

TEST_F(GroupedProductChecks, RowsMustFit) {
  EXPECT_THAT(error_of([&] {
                product(GroupedPass::Forward, 8, {3, 4}).offsets(stream());
              }),
              HasSubstr("7 rows in groups, 8 in x"));
  EXPECT_THAT(error_of([&] {
                product(GroupedPass::Forward, 1, {1, int64_t{1} << 31}).offsets(stream());
              }),
              HasSubstr("offsets are 32 bits wide"));
  EXPECT_THAT(error_of([&] {
                product(GroupedPass::Forward, 7, {3, 4}).enqueue_batched(stream());
              }),
              HasSubstr("7 rows in 2 equal groups"));
}

}  // namespace
}  // namespace ferry::testing
