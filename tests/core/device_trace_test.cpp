#include "core/device_trace.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(DeviceTrace, KernelsHaveNamesForPeople) {
  EXPECT_EQ(kernel_name("_ZN5ferry4cuda12_GLOBAL__N_16kernelIfLi8EEEvPT_i"), "kernel<float, 8>");
  EXPECT_EQ(kernel_name("void ferry::cuda::kernel<(int)4>(float*, void (*)(int))"),
            "kernel<(int)4>");
  EXPECT_EQ(kernel_name("sm90_xmma_gemm_bf16"), "sm90_xmma_gemm_bf16");
  EXPECT_EQ(kernel_name(""), "");
}

TEST(DeviceTrace, WorkIsAddedUpByNameLongestFirst) {
  const DeviceInterval intervals[] = {{"a", 0, 10}, {"b", 20, 50}, {"a", 60, 65}};
  const DeviceActivity activity = summarize(intervals);
  ASSERT_EQ(activity.work.size(), 2u);
  EXPECT_EQ(activity.work[0].name, "b");
  EXPECT_EQ(activity.work[1].name, "a");
  EXPECT_EQ(activity.work[1].calls, 2);
  EXPECT_DOUBLE_EQ(activity.work[1].seconds, 15e-9);
  EXPECT_DOUBLE_EQ(activity.busy_seconds, 45e-9);
}

TEST(DeviceTrace, OverlappingWorkIsBusyOnce) {
  // Out of order; one within another; one that begins within another and outlasts it.
  const DeviceInterval intervals[] = {{"d", 30, 40}, {"a", 0, 10}, {"b", 2, 5}, {"c", 8, 20}};
  EXPECT_DOUBLE_EQ(summarize(intervals).busy_seconds, 30e-9);
  EXPECT_EQ(summarize({}).busy_seconds, 0);
}

}  // namespace
}  // namespace ferry
