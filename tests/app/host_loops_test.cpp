#include "app/host_loops.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

constexpr int64_t kElements = 20011;

class HostLoops : public CpuTest {
 protected:
  void SetUp() override {
    arrays_ = UpdateArrays::allocate(device(), kElements);
    before_ = UpdateArrays::allocate(device(), kElements);
    arrays_.fill(0);
    before_.fill(0);
    // What is not written shows.
    std::memset(arrays_.value.raw(), 0xff, static_cast<size_t>(arrays_.value.bytes()));
  }
  void expect_unchanged(Tensor UpdateArrays::*array) {
    expect_same_bits(stream(), arrays_.*array, before_.*array);
  }

  UpdateArrays arrays_, before_;
};

TEST_F(HostLoops, FillGivesNumbersOfAnUpdate) {
  std::vector<double> masters;
  for (int64_t i = 0; i < kElements; ++i) {
    const float square = before_.exp_avg_sq.data<float>()[i];
    ASSERT_TRUE(square > 0 && std::isnormal(square)) << i;
    ASSERT_TRUE(std::isnormal(before_.grad.data<float>()[i])) << i;
    ASSERT_TRUE(std::isnormal(before_.exp_avg.data<float>()[i])) << i;
    masters.push_back(before_.master.data<float>()[i]);
    ASSERT_EQ(before_.value.data<BFloat16>()[i].bits,
              BFloat16(before_.master.data<float>()[i]).bits);
  }
  std::sort(masters.begin(), masters.end());
  EXPECT_LT(masters.front(), -0.02);
  EXPECT_GT(masters.back(), 0.02);
  EXPECT_GT(std::unique(masters.begin(), masters.end()) - masters.begin(), kElements / 2);
}

TEST_F(HostLoops, FillOfAPartIsThatOfTheWhole) {
  const UpdateArrays part = arrays_.part(100, 300);
  part.grad.data<float>()[0] = 7;
  EXPECT_EQ(arrays_.grad.data<float>()[100], 7);
  part.fill(100);
  arrays_.part(0, 100).fill(0);
  arrays_.part(300, kElements).fill(300);
  for (const auto array : {&UpdateArrays::value, &UpdateArrays::master, &UpdateArrays::exp_avg,
                           &UpdateArrays::exp_avg_sq, &UpdateArrays::grad})
    expect_unchanged(array);
}

TEST_F(HostLoops, PatternsWriteTheValueAndKeepTheRest) {
  for (const HostLoop loop :
       {HostLoop::AdamwPattern, HostLoop::AdamwOrdinary, HostLoop::SgdPattern}) {
    SCOPED_TRACE(name_of(loop));
    std::memset(arrays_.value.raw(), 0xff, static_cast<size_t>(arrays_.value.bytes()));
    run_host_loop(loop, arrays_);
    for (const auto array : {&UpdateArrays::value, &UpdateArrays::master, &UpdateArrays::exp_avg,
                             &UpdateArrays::exp_avg_sq, &UpdateArrays::grad})
      expect_unchanged(array);
  }
}

TEST_F(HostLoops, ReadChangesNothing) {
  run_host_loop(HostLoop::Read, arrays_);
  for (const auto array : {&UpdateArrays::master, &UpdateArrays::exp_avg, &UpdateArrays::exp_avg_sq,
                           &UpdateArrays::grad})
    expect_unchanged(array);
}

TEST_F(HostLoops, CopyAndTriadWriteTheGradient) {
  run_host_loop(HostLoop::Copy, arrays_);
  expect_same_bits(stream(), arrays_.grad, before_.exp_avg);
  run_host_loop(HostLoop::Triad, arrays_);
  for (int64_t i = 0; i < kElements; ++i)
    ASSERT_EQ(arrays_.grad.data<float>()[i],
              before_.exp_avg.data<float>()[i] + 3.0f * before_.exp_avg_sq.data<float>()[i])
        << i;
  expect_unchanged(&UpdateArrays::exp_avg);
  expect_unchanged(&UpdateArrays::exp_avg_sq);
}

TEST_F(HostLoops, CountBytesOnce) {
  EXPECT_EQ(bytes_per_element(HostLoop::Read), 4 * 4);
  EXPECT_EQ(bytes_per_element(HostLoop::Copy), 2 * 4);
  EXPECT_EQ(bytes_per_element(HostLoop::Triad), 3 * 4);
  EXPECT_EQ(bytes_per_element(HostLoop::AdamwPattern), 4 * 4 + 3 * 4 + 2);
  EXPECT_EQ(bytes_per_element(HostLoop::AdamwOrdinary), 4 * 4 + 3 * 4 + 2);
  EXPECT_EQ(bytes_per_element(HostLoop::SgdPattern), 3 * 4 + 2 * 4 + 2);
  EXPECT_EQ(device().memory().current(), 2 * kElements * kUpdateArrayBytes);
}

}  // namespace
}  // namespace ferry::testing
