#include "offload/optimizer_partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// "HH.": the first two of three are on the host.
std::string places(const std::vector<int64_t>& elements, double fraction,
                   HostPart part = HostPart::First) {
  std::string text;
  for (const bool on_host : choose_for_host(elements, fraction, part)) text += on_host ? 'H' : '.';
  return text;
}

TEST(OptimizerPartition, NoneAtZeroAndAllAtOne) {
  for (const HostPart part : {HostPart::First, HostPart::Last}) {
    EXPECT_EQ(places({5, 1, 4}, 0, part), "...");
    EXPECT_EQ(places({5, 1, 4}, 1, part), "HHH");
    EXPECT_EQ(places({}, 0, part), "");
    EXPECT_EQ(places({}, 1, part), "");
  }
}

// Those before it are compared, not those with it: the last one that goes may overshoot.
TEST(OptimizerPartition, TheThresholdIsCheckedBeforeAParameterIsAdded) {
  EXPECT_EQ(places({5, 5, 5, 5}, 0.26), "HH..");
  EXPECT_EQ(places({10, 1, 1}, 0.01), "H..") << "overshoots";
  EXPECT_EQ(places({1, 10, 1}, 0.1), "HH.");
  EXPECT_EQ(places({4, 4}, 1e-12), "H.");
}

TEST(OptimizerPartition, TheThresholdIsStrict) {
  EXPECT_EQ(places({5, 5, 5, 5}, 0.25), "H...") << "5 of 20 are not fewer than 5";
  EXPECT_EQ(places({5, 5, 5, 5}, 0.5), "HH..");
  EXPECT_EQ(places({5, 5, 5, 5}, 0.75), "HHH.");
}

TEST(OptimizerPartition, BeginsAtEitherEnd) {
  EXPECT_EQ(places({1, 2, 3, 4}, 0.4, HostPart::First), "HHH.");
  EXPECT_EQ(places({1, 2, 3, 4}, 0.4, HostPart::Last), "...H");
  EXPECT_EQ(places({1, 2, 3, 4}, 0.5, HostPart::Last), "..HH");
}

// Shards of a rank that owns no row. They have no state, so their place matters to nobody.
TEST(OptimizerPartition, ShardsWithoutElementsTakeNothingOfThePart) {
  EXPECT_EQ(places({0, 5, 0, 5}, 0.5), "HH..");
  EXPECT_EQ(places({0, 5, 5}, 0), "...");
  EXPECT_EQ(places({0, 0}, 0.5), "..") << "all is nothing";
}

TEST(OptimizerPartition, AFractionIsOne) {
  for (const double fraction : {-0.1, 1.1}) {
    const std::vector<int64_t> elements{1};
    EXPECT_THAT([&] { choose_for_host(elements, fraction, HostPart::First); },
                ThrowsMessage<Error>(HasSubstr("fraction")));
  }
}

Parameter parameter(const std::string& name, const Shape& shape, ReduceAxis axis, bool decay) {
  Parameter made;
  made.name = name;
  made.shape = shape;
  made.axis = axis;
  made.decay = decay;
  return made;
}

TEST(OptimizerPartition, DenseParametersAndExpertsAreTwoLists) {
  const Parameter all[] = {
      parameter("a", {10}, ReduceAxis::Dense, true),
      parameter("fc1", {5, 10}, ReduceAxis::Expert, true),
      parameter("b", {10}, ReduceAxis::Stage, false),
      parameter("c", {10}, ReduceAxis::Tied, true),
      parameter("fc2", {50}, ReduceAxis::Expert, true),
      parameter("d", {2, 5}, ReduceAxis::Dense, true),
  };
  std::vector<const Parameter*> pointers;
  for (const Parameter& p : all) pointers.push_back(&p);
  const auto on_host = [&](double fraction, HostPart part) {
    std::string names;
    for (const OptimizerPlace& place : place_optimizer(pointers, fraction, part))
      if (place.on_host) names += place.name + " ";
    return names;
  };
  EXPECT_EQ(on_host(0.5, HostPart::First), "a fc1 b ");
  EXPECT_EQ(on_host(0.5, HostPart::Last), "c fc2 d ");
  EXPECT_EQ(on_host(0.51, HostPart::First), "a fc1 b c fc2 ");
  EXPECT_EQ(on_host(0, HostPart::First), "");
  EXPECT_EQ(on_host(1, HostPart::Last), "a fc1 b c fc2 d ");

  const std::vector<OptimizerPlace> places = place_optimizer(pointers, 0.5, HostPart::First);
  ASSERT_EQ(places.size(), 6u);
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(places[i].name, all[i].name) << "in the order of forward";
    EXPECT_EQ(places[i].elements, all[i].shape.numel());
    EXPECT_EQ(places[i].expert, all[i].axis == ReduceAxis::Expert);
    EXPECT_EQ(places[i].decay, all[i].decay);
  }
}

}  // namespace
}  // namespace ferry::testing
