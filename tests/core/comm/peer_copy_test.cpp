#include "core/comm/peer_copy.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(PeerCopy, IsNothingOfACpu) {
  const auto device = make_cpu_device();
  EXPECT_FALSE(measure_peer_copy(*device).has_value());
}

TEST(PeerCopy, NeedsASecondGpu) {
  if (num_cuda_devices() != 1) GTEST_SKIP() << "not one GPU";
  const auto device = make_cuda_device(0);
  EXPECT_FALSE(measure_peer_copy(*device).has_value());
}

TEST(PeerCopy, HasARateEveryTime) {
  if (num_cuda_devices() < 2) GTEST_SKIP() << "needs two GPUs";
  const auto device = make_cuda_device(0);
  const auto first = measure_peer_copy(*device);
  if (!first) GTEST_SKIP() << "these GPUs do not reach each other";
  EXPECT_GT(*first, 1e9);
  EXPECT_GT(measure_peer_copy(*device).value(), 1e9);
}

}  // namespace
}  // namespace ferry
