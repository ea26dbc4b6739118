#include "offload/auto_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/offload/fake_passes.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;

class AutoOffloadTest : public CpuTest {
 protected:
  static ActivationOffloadConfig config() {
    ActivationOffloadConfig config;
    config.modules = {{Label::CoreAttn, "core_attn"}, {Label::ExpertFc1, "expert_fc1"}};
    config.min_tensor_elements = 1;
    config.takes_back = false;
    return config;
  }
  static int64_t moved(const AutoOffload& offload) {
    int64_t bytes = 0;
    for (const auto& [module, traffic] : offload.traffic()) bytes += traffic.d2h_bytes;
    return bytes;
  }
};

TEST_F(AutoOffloadTest, MeasuresBytesThenTimeThenChooses) {
  AutoOffload offload(device(), config(), 1.0);
  EXPECT_GT(offload.rates().d2h_bytes_per_s, 1e6);
  EXPECT_GT(offload.rates().h2d_bytes_per_s, 1e6);
  FakePasses passes(stream(), offload, 4, {Label::CoreAttn, Label::ExpertFc1}, {100, 1000});
  EXPECT_EQ(auto_offload_text(offload, 0), "activation offload: measuring");

  passes.step(one_by_one(2));
  EXPECT_EQ(moved(offload), 2 * 4 * 1100 * 4);
  EXPECT_FALSE(offload.choice());

  passes.step(one_by_one(2));
  EXPECT_EQ(moved(offload), 0);
  ASSERT_TRUE(offload.choice());
  EXPECT_EQ(offload.choice()->num_candidates, 8);
  EXPECT_GT(offload.seconds_without(), 0);
  EXPECT_EQ(offload.seconds_with(), 0);
  EXPECT_THAT(auto_offload_text(offload, 0), HasSubstr("of 8 groups, copies at "));
  EXPECT_THAT(auto_offload_text(offload, 0), ::testing::Not(HasSubstr("achieved")));

  passes.step(one_by_one(2));
  EXPECT_GT(offload.seconds_with(), 0);
  int64_t chosen = 0;
  for (const PassGroups& pass : offload.choice()->passes)
    for (size_t i = 0; i < pass.groups.size(); ++i)
      // The last group of each module comes back next, whatever was chosen.
      if (pass.groups[i].offload && i < 6) chosen += pass.groups[i].bytes;
  EXPECT_EQ(moved(offload), chosen);
  EXPECT_THAT(auto_offload_text(offload, 3 << 29), HasSubstr("% and 1.50 GiB"));
}

TEST_F(AutoOffloadTest, BeginsAgainWhenTheScheduleChanges) {
  AutoOffload offload(device(), config(), 0.5);
  FakePasses passes(stream(), offload, 3, {Label::CoreAttn, Label::ExpertFc1}, {100, 1000});
  for (int step = 0; step < 3; ++step) passes.step(one_by_one(1));
  EXPECT_TRUE(offload.choice());
  passes.step(one_by_one(3));
  EXPECT_FALSE(offload.choice());
  EXPECT_EQ(moved(offload), 3 * 3 * 1100 * 4);
  passes.step(one_by_one(3));
  EXPECT_EQ(moved(offload), 0);
  EXPECT_TRUE(offload.choice());
}

}  // namespace
}  // namespace ferry::testing
