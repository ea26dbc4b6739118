#include "moe/moe_config.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(MoeConfig, LayerFrequency) {
  MoeConfig moe;
  EXPECT_FALSE(moe.is_moe_layer(0));
  moe.experts = 8;
  EXPECT_TRUE(moe.is_moe_layer(0) && moe.is_moe_layer(1));
  moe.layer_freq = {2};
  EXPECT_TRUE(moe.is_moe_layer(0) && !moe.is_moe_layer(1) && moe.is_moe_layer(2));
  moe.layer_freq = {0, 1, 1};
  EXPECT_TRUE(!moe.is_moe_layer(0) && moe.is_moe_layer(1) && moe.is_moe_layer(2));
}

TEST(RouterConfig, CoefficientOfABalancingLoss) {
  RouterConfig router;
  EXPECT_EQ(router.coefficient("aux_loss"), 0.0);
  router.balance = {"seq_aux_loss", "aux_loss"};
  router.aux_coeff = {0.1, 0.2};
  EXPECT_EQ(router.coefficient("aux_loss"), 0.2);
  EXPECT_EQ(router.coefficient("seq_aux_loss"), 0.1);
  EXPECT_EQ(router.coefficient("none"), 0.0);
}

}  // namespace
}  // namespace ferry
