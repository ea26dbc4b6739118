#include "core/ops/gemm_tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/ops/gemm.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Candidates that take the given seconds, and whose first call takes longer.
struct FakeDevice {
  explicit FakeDevice(std::vector<double> seconds_in, double first_in = 0)
      : seconds(std::move(seconds_in)), first(first_in), calls(seconds.size()) {}

  double call(size_t candidate) {
    const bool is_first = calls[candidate]++ == 0;
    if (!is_first) counted += seconds[candidate];
    return seconds[candidate] + (is_first ? first : 0);
  }
  GemmChoice choose() {
    return choose_gemm(seconds.size(), [this](size_t candidate) { return call(candidate); });
  }

  std::vector<double> seconds;
  double first;
  std::vector<int> calls;
  double counted = 0;
};

TEST(ChooseGemm, TakesTheFastest) {
  FakeDevice device({4e-4, 3.8e-4, 3e-4, 3.1e-4});
  const GemmChoice choice = device.choose();
  EXPECT_EQ(choice.candidate, 2);
  EXPECT_DOUBLE_EQ(choice.seconds, 3e-4);
  EXPECT_DOUBLE_EQ(choice.heuristic_seconds, 4e-4);
}

TEST(ChooseGemm, KeepsTheHeuristicsWithinNoise) {
  EXPECT_EQ(FakeDevice({1e-3, 0.995e-3}).choose().candidate, 0);
  EXPECT_EQ(FakeDevice({1e-3, 0.985e-3}).choose().candidate, 1);
  EXPECT_EQ(FakeDevice({1e-3}).choose().candidate, 0);
}

TEST(ChooseGemm, DoesNotCountFirstCalls) {
  FakeDevice device({2e-4, 1e-4}, 0.5);
  EXPECT_EQ(device.choose().candidate, 1);
  EXPECT_THAT(device.calls, ElementsAre(2, 8));  // the slower one is hopeless
}

TEST(ChooseGemm, CallsHopelessOnesNoMore) {
  FakeDevice device({1e-4, 1.1e-4, 1.2e-4});
  device.choose();
  EXPECT_THAT(device.calls, ElementsAre(8, 8, 2));
}

TEST(ChooseGemm, SpendsLittleOnLongProducts) {
  FakeDevice device(std::vector<double>(16, 0.02));
  device.choose();
  // Three fill half of the time, and then there are calls until it is over.
  for (size_t i = 3; i < 16; ++i) EXPECT_EQ(device.calls[i], 0) << i;
  EXPECT_GE(device.counted, kGemmTimingSeconds - 1e-9);
  EXPECT_LE(device.counted, kGemmTimingSeconds + 0.02);
  FakeDevice longest(std::vector<double>(16, 10.0));
  EXPECT_EQ(longest.choose().candidate, 0);
  EXPECT_EQ(std::accumulate(longest.calls.begin(), longest.calls.end(), 0), 2);
}

// One call in three is disturbed.
TEST(ChooseGemm, IgnoresOutliers) {
  std::vector<int> calls(2);
  const GemmChoice choice = choose_gemm(2, [&](size_t candidate) {
    const bool disturbed = ++calls[candidate] % 3 == 0;
    return (candidate == 0 ? 1.1e-4 : 1e-4) * (disturbed ? 20 : 1);
  });
  EXPECT_EQ(choice.candidate, 1);
  EXPECT_DOUBLE_EQ(choice.seconds, 1e-4);
}

TEST(ChooseGemm, NeedsACandidate) {
  EXPECT_THROW(choose_gemm(0, [](size_t) { return 1.0; }), Error);
}

TEST(GemmTuning, IsAnotherObjectEachTime) {
  const auto before = gemm_tuning();
  EXPECT_EQ(gemm_tuning(), before);
  GemmTuning tuning;
  tuning.known["a kind"].us = 3;
  set_gemm_tuning(tuning);
  EXPECT_NE(gemm_tuning(), before);
  EXPECT_EQ(gemm_tuning()->known.at("a kind").us, 3);
  set_gemm_tuning({});
  EXPECT_TRUE(gemm_tuning()->known.empty());
  EXPECT_EQ(gemm_tuning()->unknown, UnknownGemm::Heuristic);
}

TEST(GemmTuning, CountsPlans) {
  const int64_t before = num_gemm_plans();
  count_gemm_plan();
  EXPECT_EQ(num_gemm_plans(), before + 1);
}

// A forward product and a weight gradient that is added to, under several tunings.
class TunedGemm : public DeviceTest {
 protected:
  struct Results {
    std::vector<double> y, dweight;
    bool operator==(const Results&) const = default;
  };

  void TearDown() override { set_gemm_tuning({}); }

  Results multiply() {
    const Tensor x = random({kM, kK}, 1), weight = random({kN, kK}, 2), dy = random({kM, kN}, 3);
    const Tensor y = output({kM, kN});
    const Tensor dweight = random_tensor(stream(), {kN, kK}, accumulate(), 4);
    gemm(stream(), y, x, Transpose::No, weight, Transpose::Yes);
    gemm(stream(), dweight, dy, Transpose::Yes, x, Transpose::No, 1);
    return {read_back_as_double(stream(), y), read_back_as_double(stream(), dweight)};
  }
  Results multiply(const GemmMeasurements& known, UnknownGemm unknown) {
    GemmTuning tuning;
    tuning.known = known;
    tuning.unknown = unknown;
    tuning.on_measured = [this](const std::string& kind, const GemmMeasurement& measurement) {
      measured_[kind] = measurement;
    };
    tuning.on_notice = [this](const std::string& notice) { notices_.push_back(notice); };
    measured_.clear();
    set_gemm_tuning(tuning);
    return multiply();
  }
  void expect_same_numbers(const Results& actual, const Results& expected) {
    const double rounding = static_cast<double>(kM + 1) * epsilon_of(accumulate());
    testing::expect_close(actual.y, expected.y, 2 * epsilon_of(dtype()), rounding);
    testing::expect_close(actual.dweight, expected.dweight, 2 * epsilon_of(accumulate()), rounding);
  }

  GemmMeasurements measured_;
  std::vector<std::string> notices_;

 private:
  static constexpr int64_t kM = 1024, kN = 384, kK = 256;
};

TEST_P(TunedGemm, GivesTheNumbersOfTheHeuristic) {
  const Results expected = multiply({}, UnknownGemm::Heuristic);
  EXPECT_TRUE(measured_.empty());
  const Results tuned = multiply({}, UnknownGemm::Measure);
  expect_same_numbers(tuned, expected);
  if (on_cpu()) {
    EXPECT_TRUE(measured_.empty());
    return;
  }
  ASSERT_EQ(measured_.size(), 2);
  for (const auto& [kind, measurement] : measured_) {
    EXPECT_THAT(kind, HasSubstr(name_of(dtype())));
    EXPECT_THAT(kind, AnyOf(HasSubstr("1 x [1024, 384]"), HasSubstr("1 x [384, 256]")));
    EXPECT_GT(measurement.us, 0);
    EXPECT_LE(measurement.us, measurement.heuristic_us);
  }
}

TEST_P(TunedGemm, GivesEqualBitsWhereTheAlgorithmsAreKnown) {
  const Results tuned = multiply({}, UnknownGemm::Measure);
  const GemmMeasurements known = measured_;
  EXPECT_EQ(multiply(), tuned);  // chosen once
  for (const UnknownGemm unknown :
       {UnknownGemm::Heuristic, UnknownGemm::Measure, UnknownGemm::Record}) {
    EXPECT_EQ(multiply(known, unknown), tuned);
    EXPECT_TRUE(measured_.empty()) << "measured again";
  }
  EXPECT_TRUE(notices_.empty());
}

TEST_P(TunedGemm, RecordsWithoutUse) {
  const Results expected = multiply({}, UnknownGemm::Heuristic);
  EXPECT_EQ(multiply({}, UnknownGemm::Record), expected);
  EXPECT_EQ(measured_.size(), on_cpu() ? 0 : 2);
}

TEST_P(TunedGemm, MeasuresAgainWhatCublasDoesNotTake) {
  if (on_cpu()) GTEST_SKIP() << "no algorithms";
  const Results expected = multiply({}, UnknownGemm::Record);
  GemmMeasurements known = measured_;
  for (auto& [kind, measurement] : known) measurement.algorithm.fill(~uint64_t{0});
  EXPECT_EQ(multiply(known, UnknownGemm::Heuristic), expected);
  ASSERT_EQ(notices_.size(), 2);
  EXPECT_THAT(notices_[0], HasSubstr("cuBLAS does not take the measured algorithm of 1 x ["));
  EXPECT_TRUE(measured_.empty());
  expect_same_numbers(multiply(known, UnknownGemm::Measure), expected);
  EXPECT_EQ(measured_.size(), 2);
}

TEST_P(TunedGemm, CountsEachKindOnce) {
  if (on_cpu()) GTEST_SKIP() << "no algorithms";
  set_gemm_tuning({});
  const int64_t before = num_gemm_plans();
  multiply();
  EXPECT_EQ(num_gemm_plans(), before + 2);
  multiply();
  EXPECT_EQ(num_gemm_plans(), before + 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, TunedGemm, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
