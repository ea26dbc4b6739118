#include "app/saved_layers.h"

#include <gtest/gtest.h>

#include <array>

namespace ferry {
namespace {

// Four layers that save 100, 10, 1 and 1000 bytes, and a head that saves 5.
PassRecords four_layers() {
  PassRecords costs;
  const int64_t sizes[] = {100, 10, 1, 1000, 5};
  for (size_t i = 0; i < 5; ++i) {
    costs.tensors.push_back({"x", sizes[i], 1, DType::U8});
    costs.records.push_back(
        {.label = Label::Mlp, .layer = i < 4 ? static_cast<int64_t>(i) : -1, .tensors = {i}});
  }
  return costs;
}

struct OnePass {
  OnePass(PassRecords records, int64_t num_layers)
      : costs(std::move(records)),
        offloaded{num_layers, 4},
        tape(costs.tensors, ledger),
        layers(offloaded, tape, ledger) {}
  std::map<std::string, int64_t> after_forward() {
    save_pass(costs, tape, std::array<SavedMover*, 1>{&layers});
    return ledger.now();
  }
  // Bytes of all modules after the layer's record was loaded, and before the next one is.
  std::vector<int64_t> loads() {
    std::vector<int64_t> bytes;
    while (!tape.empty()) {
      layers.loading(tape.newest());
      tape.load();
      bytes.push_back(ledger.current());
    }
    return bytes;
  }

  PassRecords costs;
  OffloadedLayers offloaded;
  SavedLedger ledger;
  SavedTape tape;
  SavedLayers layers;
};

using Bytes = std::map<std::string, int64_t>;

TEST(SavedLayers, WhatLeftIsLetGoAsLateAsThePeakAllows) {
  // When the head begins, two layers of four may be there: those that stay.
  EXPECT_EQ(OnePass(four_layers(), 2).after_forward(), (Bytes{{"mlp", 1006}}));
  OnePass pass(four_layers(), 2);
  pass.after_forward();
  // When layer 2 had begun, nothing was let go. A tensor is counted twice as it leaves.
  EXPECT_EQ(pass.ledger.peaks(), (Bytes{{"layer", 110}, {"mlp", 1006}}));
  EXPECT_EQ(pass.ledger.host_peak(), 110);
}

TEST(SavedLayers, ALayerComesBackWhileTheOneAboveGoesBack) {
  OnePass pass(four_layers(), 2);
  pass.after_forward();
  // The head and layer 3 are gone; then layer 1 comes back while 2 is used, and 0 while 1 is.
  EXPECT_EQ(pass.loads(), (std::vector<int64_t>{1001, 1, 10, 100, 0}));
}

TEST(SavedLayers, ATensorThatTheNextLayerSavesIsThatLayers) {
  PassRecords costs = four_layers();
  costs.records[1].tensors.push_back(0);
  EXPECT_EQ(OnePass(costs, 1).after_forward(), (Bytes{{"mlp", 1116}})) << "nothing left";
  OnePass two(costs, 2);
  EXPECT_EQ(two.after_forward(), (Bytes{{"mlp", 1006}}));
  EXPECT_EQ(two.loads().back(), 0);
}

TEST(SavedLayers, AsGroups) {
  const std::vector<OffloadGroup> groups = layer_groups(four_layers(), 2);
  ASSERT_EQ(groups.size(), 4u) << "the head is not one";
  EXPECT_EQ(groups[0].module, "layer");
  EXPECT_EQ(groups[0].bytes, 100);
  EXPECT_TRUE(groups[1].offload);
  EXPECT_FALSE(groups[2].offload);
}

}  // namespace
}  // namespace ferry
