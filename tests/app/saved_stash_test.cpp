#include "app/saved_stash.h"

#include <gtest/gtest.h>

#include <array>

namespace ferry {
namespace {

// Two layers: experts that save 32 bytes and a vector of 8; attention with 300, experts with 200.
PassRecords two_layers() {
  PassRecords costs;
  costs.tensors = {{"rows", 8, 4, DType::U8},
                   {"probability", 8, 1, DType::U8},
                   {"qkv", 100, 3, DType::U8},
                   {"rows", 50, 2, DType::BF16}};
  costs.records = {{.label = Label::MoeAct, .layer = 0, .tensors = {0, 1}},
                   {.label = Label::CoreAttn, .layer = 1, .tensors = {2}},
                   {.label = Label::ExpertFc1, .layer = 1, .tensors = {3}}};
  return costs;
}

struct OnePass {
  explicit OnePass(bool last_stays)
      : tape(costs.tensors, ledger),
        stash(costs, last_stays, 2.0, tape, ledger, packing, [this] { ++num_others; }) {
    save_pass(costs, tape, movers);
  }

  PassRecords costs = two_layers();
  SavedLedger ledger;
  SavedTape tape;
  int64_t packing = 0;
  int num_others = 0;
  SavedStash stash;
  std::array<SavedMover*, 1> movers{&stash};
};

using Bytes = std::map<std::string, int64_t>;

TEST(SavedStash, RowsOfExpertsLeaveAndVectorsStay) {
  OnePass pass(false);
  EXPECT_EQ(pass.ledger.now(), (Bytes{{"core_attn", 300}, {"moe_act", 8}}));
  EXPECT_EQ(pass.packing, 200) << "the last layer's; the first one's are in pages";
  EXPECT_EQ(pass.num_others, 1);
  ASSERT_EQ(pass.stash.stashed().size(), 2u);
  const StashedTensor& first = pass.stash.stashed()[0];
  const StashedTensor& last = pass.stash.stashed()[1];
  EXPECT_EQ(first.pool, (PoolKey{DType::U8, 4}));
  EXPECT_EQ(last.pool, (PoolKey{DType::BF16, 2}));
  EXPECT_EQ(first.group, 0);
  EXPECT_EQ(last.group, 1);
  EXPECT_EQ(first.padded_rows, 8);
  EXPECT_EQ(first.rows, 4) << "half of them are padding";
}

// They have no number of rows in use, and belong to the norm as well.
TEST(SavedStash, TokensInPlaceStay) {
  PassRecords costs = two_layers();
  costs.records.back().gathered = true;
  SavedLedger ledger;
  SavedTape tape(costs.tensors, ledger);
  int64_t packing = 0;
  SavedStash stash(costs, false, 1.0, tape, ledger, packing, [] {});
  std::array<SavedMover*, 1> movers{&stash};
  save_pass(costs, tape, movers);
  EXPECT_EQ(ledger.now(), (Bytes{{"core_attn", 300}, {"expert_fc1", 200}, {"moe_act", 8}}));
  EXPECT_EQ(stash.stashed().size(), 1u);
}

TEST(SavedStash, TheLastLayerStaysIfItsBackwardIsNext) {
  OnePass pass(true);
  EXPECT_EQ(pass.ledger.now(), (Bytes{{"core_attn", 300}, {"expert_fc1", 200}, {"moe_act", 8}}));
  EXPECT_EQ(pass.stash.stashed().size(), 2u);
}

TEST(SavedStash, WhatIsPackedAndUnpackedIsBeside) {
  OnePass pass(false);
  // The first layer's 32 bytes are held until the last layer's experts have saved theirs,
  EXPECT_EQ(pass.ledger.peak(), 508);
  EXPECT_EQ(pass.ledger.peak_beside(), 32);
  load_pass(pass.tape, pass.movers);
  // and come back when those are used.
  EXPECT_EQ(pass.ledger.peak(), 508);
  EXPECT_EQ(pass.ledger.peak_beside(), 32);
  EXPECT_EQ(pass.ledger.current(), 0);
  EXPECT_EQ(pass.packing, 0);
  EXPECT_EQ(pass.num_others, 2) << "after forward and after backward";
}

TEST(SavedStash, AnotherPassMayUnpackTheNewest) {
  OnePass pass(false);
  pass.stash.unpack_newest();
  EXPECT_EQ(pass.ledger.peak_beside(), 200) << "being packed, and back already";
  load_pass(pass.tape, pass.movers);
  EXPECT_EQ(pass.ledger.current(), 0);
}

}  // namespace
}  // namespace ferry
