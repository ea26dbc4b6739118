#include "app/saved_tape.h"

#include <gtest/gtest.h>

#include "core/check.h"

namespace ferry {
namespace {

using Bytes = std::map<std::string, int64_t>;

// Three tensors of 1, 10 and 100 bytes.
const std::vector<TensorCost> kTensors{
    {"a", 1, 1, DType::U8}, {"b", 10, 1, DType::U8}, {"c", 100, 1, DType::U8}};

RecordCost record(Label label, std::vector<size_t> tensors) {
  return {.label = label, .layer = 0, .tensors = std::move(tensors)};
}

TEST(SavedTape, ATensorBelongsToTheLastThatSavesIt) {
  SavedLedger ledger;
  SavedTape tape(kTensors, ledger);
  const RecordCost norm = record(Label::AttnNorm, {0, 1}), qkv = record(Label::QkvLinear, {1});
  tape.save(norm);
  EXPECT_EQ(ledger.now(), (Bytes{{"attn_norm", 11}}));
  tape.save(qkv);
  EXPECT_EQ(ledger.now(), (Bytes{{"attn_norm", 1}, {"qkv_linear", 10}}));
  tape.load();
  EXPECT_EQ(ledger.now(), (Bytes{{"attn_norm", 1}, {"qkv_linear", 10}})) << "still saved below";
  tape.load();
  EXPECT_EQ(ledger.current(), 0);
  EXPECT_EQ(ledger.peak(), 11);
  EXPECT_EQ(ledger.peaks(), (Bytes{{"attn_norm", 11}, {"qkv_linear", 10}}));
  EXPECT_TRUE(tape.empty());
  EXPECT_THROW(tape.load(), Error);
}

TEST(SavedTape, WhatIsRebuiltIsThereFromItsUseUntilItsSourceIsLoaded) {
  SavedLedger ledger;
  SavedTape tape(kTensors, ledger);
  RecordCost norm = record(Label::MlpNorm, {0});
  norm.rebuilt = {2};
  const RecordCost mlp = record(Label::Mlp, {2}), later = record(Label::LossHead, {1});
  tape.save(norm);
  tape.drop_rebuilt();
  tape.save(mlp);
  EXPECT_EQ(ledger.now(), (Bytes{{"mlp_norm", 1}}));
  EXPECT_EQ(ledger.peaks().at("layernorm"), 100) << "before it is dropped";
  tape.save(later);
  tape.load();
  EXPECT_EQ(ledger.current(), 1);
  tape.load();
  EXPECT_EQ(ledger.now(), (Bytes{{"mlp_norm", 1}, {"mlp", 100}}));
  tape.load();
  EXPECT_EQ(ledger.current(), 0);
}

TEST(SavedTape, ASourceThatIsAwayComesBackToRebuild) {
  SavedLedger ledger;
  SavedTape tape(kTensors, ledger);
  RecordCost norm = record(Label::MlpNorm, {0});
  norm.rebuilt = {2};
  const RecordCost mlp = record(Label::Mlp, {2});
  tape.save(norm);
  tape.drop_rebuilt();
  tape.save(mlp);
  EXPECT_TRUE(tape.on_device(0));
  EXPECT_FALSE(tape.on_device(2));
  tape.move_away(0, Label::CoreAttn);
  EXPECT_EQ(ledger.current(), 0);
  EXPECT_THROW(tape.move_away(0, Label::CoreAttn), Error);
  tape.load();
  EXPECT_EQ(ledger.now(), (Bytes{{"mlp_norm", 1}, {"mlp", 100}}));
  tape.load();
  EXPECT_EQ(ledger.current(), 0);
}

TEST(SavedTape, WhatStartsBackEarlyIsCountedAsItsModuleUntilItIsUsed) {
  SavedLedger ledger;
  SavedTape tape(kTensors, ledger);
  const RecordCost norm = record(Label::QkNorm, {1});
  tape.save(norm);
  tape.start_back(1);
  EXPECT_EQ(ledger.now(), (Bytes{{"qk_norm", 10}})) << "it is there";
  tape.move_away(1, Label::CoreAttn);
  EXPECT_EQ(ledger.host_peak(), 10);
  tape.start_back(1);
  tape.start_back(1);
  EXPECT_EQ(ledger.now(), (Bytes{{"core_attn", 10}}));
  tape.load();
  EXPECT_EQ(ledger.current(), 0);
  EXPECT_EQ(ledger.peak(), 10);
  EXPECT_EQ(ledger.peaks(), (Bytes{{"core_attn", 10}, {"qk_norm", 10}}));
  tape.start_back(1);
  EXPECT_EQ(ledger.current(), 0) << "it is gone";
}

TEST(SavedTape, WhatComesOutOfPagesIsBesideUntilItIsUsed) {
  SavedLedger ledger;
  SavedTape tape(kTensors, ledger);
  const RecordCost first = record(Label::MoeAct, {2}), second = record(Label::ExpertFc1, {1});
  tape.save(first);
  tape.move_away(2, std::nullopt);
  tape.save(second);
  EXPECT_EQ(ledger.peak(), 100);
  EXPECT_EQ(ledger.peak_beside(), 0);
  tape.start_back(2);
  EXPECT_EQ(ledger.current(), 10);
  EXPECT_EQ(ledger.peak_beside(), 10) << "of 110";
  tape.load();
  tape.load();
  EXPECT_EQ(ledger.peak_beside(), 10);
  EXPECT_EQ(ledger.current(), 0);
  EXPECT_EQ(ledger.host_peak(), 0);
}

TEST(SavedTape, ACheckpointSavesItsInputAndInBackwardTheRest) {
  SavedLedger ledger;
  SavedTape tape(kTensors, ledger);
  RecordCost checkpoint = record(Label::Moe, {0});
  checkpoint.again = {record(Label::Router, {0, 1}), record(Label::ExpertFc1, {2})};
  tape.save(checkpoint);
  EXPECT_EQ(ledger.current(), 1);
  tape.load();
  EXPECT_EQ(ledger.current(), 0);
  EXPECT_EQ(ledger.peak(), 111);
  EXPECT_EQ(ledger.at_peak(), (Bytes{{"router", 11}, {"expert_fc1", 100}}));
}

}  // namespace
}  // namespace ferry
