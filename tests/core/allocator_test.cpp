#include "core/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/tensor.h"
#include "tests/support/devices.h"

// Sanitizers call these, if they are linked: an impossible request shall return null, as malloc
// does.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MemoryLedger, KeepsCurrentAndPeakByNameAndInTotal) {
  MemoryLedger ledger;
  ledger.add("weights", 100);
  ledger.add("activations", 300);
  ledger.remove("activations", 300);
  ledger.add("weights", 50);
  EXPECT_EQ(ledger.current(), 150);
  EXPECT_EQ(ledger.peak(), 400);
  const auto table = ledger.table();
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].name, "activations");  // largest peak first
  EXPECT_EQ(table[0].current, 0);
  EXPECT_EQ(table[0].peak, 300);
  EXPECT_EQ(table[1].current, 150);
  EXPECT_EQ(table[1].peak, 150);
}

TEST(MemoryLedger, ResetPeakStartsFromWhatIsHeld) {
  MemoryLedger ledger;
  ledger.add("a", 100);
  ledger.remove("a", 60);
  ledger.reset_peak();
  EXPECT_EQ(ledger.peak(), 40);
  EXPECT_EQ(ledger.table()[0].peak, 40);
}

TEST(MemoryLedger, RefusesToFreeWhatIsNotHeld) {
  MemoryLedger ledger;
  ledger.add("a", 10);
  EXPECT_THAT([&] { ledger.remove("a", 11); },
              ThrowsMessage<Error>(HasSubstr("'a' frees 11 bytes that it does not hold")));
  EXPECT_THAT([&] { ledger.remove("b", 1); },
              ThrowsMessage<Error>(HasSubstr("'b' frees 1 bytes that it does not hold")));
}

using CpuMemory = CpuTest;

TEST_F(CpuMemory, IsInTheLedgerWhileATensorHoldsIt) {
  MemoryLedger& ledger = device().memory();
  {
    const Tensor tensor = Tensor::empty(stream(), "mine", {10, 3}, DType::F32);
    const Tensor view = tensor.rows(2, 4);
    EXPECT_EQ(ledger.current(), 120);
    EXPECT_EQ(ledger.table()[0].name, "mine");
  }
  EXPECT_EQ(ledger.current(), 0);
  EXPECT_EQ(ledger.peak(), 120);
}

// A task keeps its tensors; when its stream is synchronized, it has let go of them.
TEST_F(CpuMemory, IsReleasedByTasksBeforeEventsAfterThem) {
  stream().zero(Tensor::empty(stream(), "short", {1000}, DType::F32));
  stream().synchronize();
  EXPECT_EQ(device().memory().current(), 0);
}

TEST_F(CpuMemory, IsAlignedAndReachableByTheHost) {
  for (const int64_t numel : {0, 1, 63, 64, 65}) {
    const Tensor tensor = Tensor::empty(stream(), "t", {numel}, DType::U8);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 64, 0u);
    EXPECT_TRUE(tensor.on_host());
    EXPECT_EQ(tensor.storage()->bytes(), numel);
  }
}

TEST_F(CpuMemory, IsNaNWhenPoisoned) {
  device().set_poison_memory(true);
  const Tensor floats = Tensor::empty(stream(), "t", {17}, DType::F32);
  const Tensor halves = Tensor::empty(stream(), "t", {17}, DType::BF16);
  for (const Tensor& tensor : {floats, halves})
    for (const double value : read_back_as_double(stream(), tensor)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(CpuMemory, StorageIdsAreNeverUsedTwice) {
  const uint64_t first = Tensor::empty(stream(), "t", {8}, DType::F32).storage()->id();
  const uint64_t second = Tensor::empty(stream(), "t", {8}, DType::F32).storage()->id();
  EXPECT_NE(first, second);
}

TEST_F(CpuMemory, TooLargeARequestNamesItself) {
  try {
    Tensor::empty(stream(), "logits", {int64_t{1} << 59}, DType::F32);
    FAIL() << "allocated 2^61 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Resource);
    EXPECT_THAT(error.what(), HasSubstr("'logits' needs 2305843009213693952 bytes"));
  }
}

}  // namespace
}  // namespace ferry::testing
