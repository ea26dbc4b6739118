#include "app/optimizer_memory.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

// 100 elements of dense parameters and 1000 of experts, in the order of a model.
std::vector<UpdatedPart> parts(DType dtype) {
  return {{10, dtype, false},
          {400, dtype, true},
          {20, dtype, false},
          {600, dtype, true},
          {70, dtype, false}};
}

OptimizerTable offloaded(std::optional<double> fraction) {
  OptimizerTable optimizer;
  optimizer.offload.enabled = true;
  optimizer.offload.fraction = fraction;
  return optimizer;
}

TEST(OptimizerMemory, WithoutOffloadAllIsOnTheDevice) {
  const auto of = [](const char* name, DType dtype) {
    OptimizerTable optimizer;
    optimizer.name = name;
    return optimizer_bytes(optimizer, parts(dtype));
  };
  const auto expect = [&](const char* name, DType dtype, int64_t masters, int64_t moments) {
    const OptimizerBytes bytes = of(name, dtype);
    EXPECT_EQ(bytes.device_masters, masters * 1100) << name;
    EXPECT_EQ(bytes.device_moments, moments * 1100) << name;
    EXPECT_EQ(bytes.device(), (masters + moments) * 1100) << name;
    EXPECT_EQ(bytes.host_state() + bytes.gradient_staging + bytes.value_staging, 0) << name;
    EXPECT_EQ(bytes.d2h + bytes.h2d, 0) << name;
  };
  expect("adamw", DType::BF16, 4, 8);
  expect("adamw", DType::F32, 0, 8);  // the weight is its own master
  expect("adamw", DType::F64, 0, 16);
  expect("sgd", DType::BF16, 4, 4);
  expect("sgd", DType::F32, 0, 4);
}

TEST(OptimizerMemory, MomentsOnTheDeviceAreOfTheTypesAskedFor) {
  OptimizerTable optimizer = offloaded(0);
  optimizer.precision_aware = true;
  optimizer.exp_avg_dtype = "bf16";
  EXPECT_EQ(optimizer_bytes(optimizer, parts(DType::BF16)).device_moments, 6 * 1100);
  optimizer.exp_avg_sq_dtype = "bf16";
  EXPECT_EQ(optimizer_bytes(optimizer, parts(DType::BF16)).device_moments, 4 * 1100);
  EXPECT_EQ(optimizer_bytes(optimizer, parts(DType::BF16)).device_masters, 4 * 1100);
  optimizer.offload.fraction = 1;
  EXPECT_EQ(optimizer_bytes(optimizer, parts(DType::BF16)).host_moments, 8 * 1100)
      << "on the host they have full precision";
}

TEST(OptimizerMemory, OnTheHostEveryParameterHasAMaster) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    const OptimizerBytes bytes = optimizer_bytes(offloaded(1), parts(dtype));
    EXPECT_EQ(bytes.device(), 0);
    EXPECT_EQ(bytes.host_masters, 4 * 1100);
    EXPECT_EQ(bytes.host_moments, 8 * 1100);
    EXPECT_EQ(bytes.d2h, 4 * 1100);
    EXPECT_EQ(bytes.h2d, (dtype == DType::BF16 ? 2 : 4) * 1100);
  }
  OptimizerTable sgd = offloaded(1);
  sgd.name = "sgd";
  EXPECT_EQ(optimizer_bytes(sgd, parts(DType::BF16)).host_state(), 8 * 1100);
  EXPECT_EQ(optimizer_bytes(offloaded(1), parts(DType::F64)).host_state(), 24 * 1100);
}

TEST(OptimizerMemory, DenseParametersAndExpertsAreSplitApart) {
  OptimizerTable optimizer = offloaded(0.25);
  const auto host_elements = [&] {
    return optimizer_bytes(optimizer, parts(DType::BF16)).host_masters / 4;
  };
  EXPECT_EQ(host_elements(), 10 + 20 + 400) << "25 of 100 dense, 250 of 1000 of experts";
  optimizer.offload.take = "last";
  EXPECT_EQ(host_elements(), 70 + 600);
  optimizer.offload.fraction = 0.3;
  optimizer.offload.take = "first";
  EXPECT_EQ(host_elements(), 10 + 20 + 400) << "30 elements are not fewer than 30";
  optimizer.offload.fraction.reset();
  EXPECT_EQ(host_elements(), 1100) << "all, until auto has chosen";
  optimizer.offload.enabled = false;
  EXPECT_EQ(host_elements(), 0);
}

TEST(OptimizerMemory, WhatIsOnItsWayIsBoundedUnlessGradientsLeaveEarly) {
  constexpr int64_t kChunk = int64_t{16} << 20;
  const std::vector<UpdatedPart> large{{10 * kChunk, DType::BF16, false}};
  OptimizerTable optimizer = offloaded(1);
  OptimizerBytes bytes = optimizer_bytes(optimizer, large);
  EXPECT_EQ(bytes.gradient_staging, 4 * kChunk);
  EXPECT_EQ(bytes.value_staging, 4 * 2 * kChunk);
  optimizer.offload.overlap_d2h_h2d = true;
  bytes = optimizer_bytes(optimizer, large);
  EXPECT_EQ(bytes.gradient_staging, 4 * 10 * kChunk);
  EXPECT_EQ(bytes.value_staging, 4 * 2 * kChunk);
  // A router of full precision has chunks of its own.
  EXPECT_EQ(optimizer_bytes(optimizer, {large[0], {100, DType::F32, false}}).value_staging,
            4 * 2 * kChunk + 4 * 100);
  // No more than there is.
  optimizer.offload.overlap_d2h_h2d = false;
  bytes = optimizer_bytes(optimizer, parts(DType::BF16));
  EXPECT_EQ(bytes.gradient_staging, 4 * 1100);
  EXPECT_EQ(bytes.value_staging, 2 * 1100);
}

}  // namespace
}  // namespace ferry
