#include "core/pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "core/host_copy.h"
#include "core/stream_cpu.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class PassTest : public CpuTest {
 protected:
  Tape tape_;
  Batch batch_;
  StepTotals totals_;
};

TEST_F(PassTest, OnceDecidesOncePerSite) {
  Pass pass(stream(), tape_, batch_, totals_, {}, true);
  int site = 0, other_site = 0, num_decisions = 0;
  const auto decide = [&] { return ++num_decisions; };
  EXPECT_EQ(pass.once(&site, decide), 1);
  EXPECT_EQ(pass.once(&site, decide), 1);
  EXPECT_EQ(pass.once(&other_site, decide), 2);
  Pass another(stream(), tape_, batch_, totals_, {}, true);
  EXPECT_EQ(another.once(&site, decide), 3);
}

TEST_F(PassTest, OnceDoesNotRememberADecisionThatThrew) {
  Pass pass(stream(), tape_, batch_, totals_, {}, true);
  int site = 0;
  EXPECT_THROW(pass.once(&site, []() -> int { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_EQ(pass.once(&site, [] { return 5; }), 5);
}

TEST_F(PassTest, WithTapeReplacesTheTapeForItsBody) {
  Pass pass(stream(), tape_, batch_, totals_, {}, true);
  Tape other;
  EXPECT_EQ(pass.with_tape(other, [&] { return &pass.tape(); }), &other);
  EXPECT_EQ(&pass.tape(), &tape_);
  EXPECT_THROW(pass.with_tape(other, [] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(&pass.tape(), &tape_);
}

TEST_F(PassTest, TotalsStartAtZeroAndKeepTheirSum) {
  device().set_poison_memory(true);
  const Tensor total = totals_.get(stream(), "loss", {2}, DType::F64);
  enqueue_cpu(stream(), [total] { total.data<double>()[1] += 3; });
  const Tensor again = totals_.get(stream(), "loss", {2}, DType::F64);
  EXPECT_TRUE(again.same_memory(total));
  EXPECT_THAT(read_back<double>(stream(), again), ::testing::ElementsAre(0, 3));
  EXPECT_EQ(totals_.all().size(), 1u);
  totals_.clear();
  EXPECT_THAT(read_back<double>(stream(), totals_.get(stream(), "loss", {2}, DType::F64)),
              ::testing::ElementsAre(0, 0));
}

TEST_F(PassTest, TotalsKeepTheirShapeAndDtype) {
  totals_.get(stream(), "loss", {2}, DType::F32);
  EXPECT_THAT([&] { totals_.get(stream(), "loss", {3}, DType::F32); },
              ThrowsMessage<Error>(HasSubstr("step total 'loss' is [2], asked for as [3]")));
  EXPECT_THROW(totals_.get(stream(), "loss", {2}, DType::F64), Error);
}

}  // namespace
}  // namespace ferry::testing
