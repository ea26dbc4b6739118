#include "offload/activation_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph.h"
#include "tests/offload/fake_passes.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Groups a (core_attn) and f (expert_fc1), of different sizes so that bytes tell them apart.
constexpr int64_t kA = 100, kF = 1000;

class ActivationOffloadTest : public CpuTest {
 protected:
  ActivationOffloadConfig config(double fraction = 1) {
    ActivationOffloadConfig config;
    config.modules = {{Label::CoreAttn, "core_attn"}, {Label::ExpertFc1, "expert_fc1"}};
    config.min_tensor_elements = 1;
    config.rules.fraction = fraction;
    config.takes_back = false;
    return config;
  }
  static std::vector<Label> both() { return {Label::CoreAttn, Label::ExpertFc1}; }
};

// How often each module has moved so far in this step, from the bytes.
struct Moved {
  int64_t a = 0, f = 0;
  bool operator==(const Moved&) const = default;
};
Moved moved_down(const ActivationOffload& offload) {
  TrafficByModule traffic = offload.traffic();
  return {traffic["core_attn"].h2d_bytes / (4 * kA), traffic["expert_fc1"].h2d_bytes / (4 * kF)};
}
Moved moved_up(const ActivationOffload& offload) {
  TrafficByModule traffic = offload.traffic();
  return {traffic["core_attn"].d2h_bytes / (4 * kA), traffic["expert_fc1"].d2h_bytes / (4 * kF)};
}

// What moves back, seen before each use of a group: "L1.f: a1 f2" are totals so far.
std::vector<std::string> backward_trace(ActivationOffload& offload, FakePasses& passes,
                                        PassId pass) {
  std::vector<std::string> trace;
  const char* names = "af";
  Moved last = moved_down(offload);
  std::string line;
  passes.backward(
      pass,
      [&](int layer, size_t i) {
        line = concat("L", layer, ".", names[i]);
        last = moved_down(offload);
      },
      [&](int, size_t) {
        // Before this use: what the last one began. With this use: what it had to fetch itself.
        const Moved now = moved_down(offload);
        if (now.a > last.a) line += concat(" +a", now.a - last.a);
        if (now.f > last.f) line += concat(" +f", now.f - last.f);
        trace.push_back(line);
      });
  return trace;
}

TEST_F(ActivationOffloadTest, MeasuresInTheFirstStepAndKeepsTheLastGroupsAfterwards) {
  ActivationOffload offload(device(), config());
  FakePasses passes(stream(), offload, 3, both(), {kA, kF});
  EXPECT_EQ(offload.plan(), nullptr);
  EXPECT_THAT(offload.summary(), IsEmpty());
  passes.step(one_by_one(1));
  EXPECT_EQ(moved_up(offload), (Moved{3, 3}));
  EXPECT_EQ(moved_down(offload), (Moved{3, 3}));
  ASSERT_NE(offload.plan(), nullptr);
  EXPECT_EQ(offload.plan()->at(0).groups.size(), 6u);
  EXPECT_EQ(offload.plan()->at(0).groups[1].bytes, 4 * kF);
  passes.step(one_by_one(1));
  EXPECT_EQ(moved_up(offload), (Moved{2, 2}));
  EXPECT_EQ(moved_down(offload), (Moved{2, 2}));
  EXPECT_EQ(offload.summary(),
            (std::map<std::string, int64_t>{{"core_attn", 8 * kA}, {"expert_fc1", 8 * kF}}));
}

// One chunk, 3 layers: the use of the two kept groups begins the copies back of the next two, so
// each later use finds its own copy under way and begins the one of two groups ahead.
TEST_F(ActivationOffloadTest, ReloadsOneGroupForEachGroupUsed) {
  ActivationOffload offload(device(), config());
  FakePasses passes(stream(), offload, 3, both(), {kA, kF});
  passes.step(one_by_one(1));
  offload.begin_step(one_by_one(1), stream());
  passes.forward({0, 0});
  // "L1.a +f1" is: when L1.a had been read, one f more had begun to come back since L1.f was.
  // A use is over when the next record is read, so what L2.f begins shows at L2.a.
  EXPECT_THAT(backward_trace(offload, passes, {0, 0}),
              ElementsAre("L2.f", "L2.a +f1", "L1.f +a1", "L1.a +f1", "L0.f +a1", "L0.a"));
}

// PP=1, two micro-batches, two layers, one module: the plan keeps m0's last group, and m1's last
// group stays because m1 comes back next.
TEST_F(ActivationOffloadTest, KeepsWhatComesBackNext) {
  ActivationOffload offload(device(), config());
  FakePasses passes(stream(), offload, 2, {Label::CoreAttn}, {kA});
  passes.step(one_by_one(2));
  EXPECT_EQ(moved_up(offload), (Moved{4, 0}));
  EXPECT_EQ(offload.plan()->at(0).groups[1].offload, false);
  EXPECT_EQ(offload.plan()->at(1).groups[1].offload, true);
  offload.begin_step(one_by_one(2), stream());
  passes.forward({0, 0});
  EXPECT_EQ(moved_up(offload), (Moved{1, 0}));
  passes.backward({0, 0});
  passes.forward({0, 1});
  EXPECT_EQ(moved_up(offload), (Moved{2, 0}));
  passes.backward({0, 1});
}

// The first of two stages, four micro-batches: only m0 keeps its last group, and the end of B0
// begins the copy of m1's last group, before F2.
TEST_F(ActivationOffloadTest, CrossesToTheNextMicroBatchInTheOrderOfBackward) {
  const std::vector<PassAction> actions = first_of_two_stages(4);
  ActivationOffload offload(device(), config());
  FakePasses passes(stream(), offload, 2, {Label::CoreAttn}, {kA});
  passes.step(actions);
  offload.begin_step(actions, stream());
  passes.forward({0, 0});
  passes.forward({0, 1});
  EXPECT_EQ(moved_up(offload), (Moved{3, 0}));
  EXPECT_THAT(backward_trace(offload, passes, {0, 0}), ElementsAre("L1.a", "L0.a +a1"));
  EXPECT_EQ(moved_down(offload), (Moved{2, 0}));  // one of m1
  passes.forward({0, 2});
  EXPECT_EQ(moved_up(offload), (Moved{5, 0}));
  passes.backward({0, 1});
  EXPECT_EQ(moved_down(offload), (Moved{4, 0}));  // m1's other, and one of m2
  passes.forward({0, 3});
  passes.backward({0, 2});
  passes.backward({0, 3});
  EXPECT_EQ(moved_up(offload), moved_down(offload));
  EXPECT_EQ(offload.summary(), (std::map<std::string, int64_t>{{"core_attn", 4 * kA}}));
}

// PP=1, 3 micro-batches, 4 layers, fraction 0.5: m0 moves L0.a, L0.f, L1.a; the others move L1.f,
// too. Groups that stayed do not wait for the copies of others.
TEST_F(ActivationOffloadTest, FractionMovesTheFirstLayers) {
  ActivationOffload offload(device(), config(0.5));
  FakePasses passes(stream(), offload, 4, both(), {kA, kF});
  passes.step(one_by_one(3));
  offload.begin_step(one_by_one(3), stream());
  passes.forward({0, 0});
  EXPECT_EQ(moved_up(offload), (Moved{2, 1}));
  EXPECT_THAT(
      backward_trace(offload, passes, {0, 0}),
      ElementsAre("L3.f", "L3.a +a1", "L2.f +f1", "L2.a +a1", "L1.f", "L1.a", "L0.f", "L0.a"));
  passes.forward({0, 1});
  EXPECT_EQ(moved_up(offload), (Moved{4, 3}));
  passes.backward({0, 1});
  passes.forward({0, 2});
  EXPECT_EQ(moved_up(offload), (Moved{6, 5}));
  passes.backward({0, 2});
}

// The same as the first of two stages: when m0 has nothing left, its groups pull back m1's.
TEST_F(ActivationOffloadTest, GroupsThatStayedPullBackThoseOfTheNextPass) {
  const std::vector<PassAction> actions = first_of_two_stages(3);
  ActivationOffload offload(device(), config(0.5));
  FakePasses passes(stream(), offload, 4, both(), {kA, kF});
  passes.step(actions);
  offload.begin_step(actions, stream());
  passes.forward({0, 0});
  passes.forward({0, 1});
  EXPECT_EQ(moved_up(offload), (Moved{4, 3}));
  passes.backward({0, 0});
  EXPECT_EQ(moved_down(offload), (Moved{4, 3}));  // m0's three, and all four of m1
}

TEST_F(ActivationOffloadTest, FractionZeroAndSeveralMicroBatchesMoveNothing) {
  for (const auto& actions : {one_by_one(3), first_of_two_stages(3)}) {
    ActivationOffload offload(device(), config(0));
    FakePasses passes(stream(), offload, 3, both(), {kA, kF});
    passes.step(actions);
    passes.step(actions);
    EXPECT_EQ(moved_up(offload), Moved{});
  }
}

TEST_F(ActivationOffloadTest, DeltaKeepsTheFirstGroupsOfLaterStages) {
  ActivationOffloadConfig with_delta = config();
  with_delta.rules.delta_bytes = 1;
  with_delta.rules.pipeline_rank = 1;
  ActivationOffload offload(device(), with_delta);
  FakePasses passes(stream(), offload, 3, both(), {kA, kF});
  passes.step(first_of_two_stages(3));
  passes.step(first_of_two_stages(3));
  EXPECT_EQ(moved_up(offload), (Moved{3 + 3 + 1, 3 + 3 + 2}));  // m0 keeps L0.a, L2.a and L2.f
}

TEST_F(ActivationOffloadTest, WhatHasNotLeftIsUsedAsItIs) {
  ActivationOffloadConfig taking = config();
  taking.takes_back = true;
  ActivationOffload offload(device(), taking);
  FakePasses passes(stream(), offload, 5, both(), {kA, 100 * kF});
  for (int step = 0; step < 5; ++step) {
    passes.step(first_of_two_stages(4));
    TrafficByModule traffic = offload.traffic();
    EXPECT_LE(traffic["expert_fc1"].h2d_bytes, traffic["expert_fc1"].d2h_bytes);
  }
}

TEST_F(ActivationOffloadTest, MeasuresAgainWhenTheScheduleChanges) {
  ActivationOffload offload(device(), config());
  FakePasses passes(stream(), offload, 3, both(), {kA, kF});
  passes.step(one_by_one(1));
  passes.step(one_by_one(1));
  EXPECT_EQ(moved_up(offload), (Moved{2, 2}));
  passes.step(one_by_one(2));
  EXPECT_EQ(moved_up(offload), (Moved{6, 6}));
  passes.step(one_by_one(2));
  EXPECT_EQ(moved_up(offload), (Moved{4, 4}));
}

TEST_F(ActivationOffloadTest, SmallTensorsStay) {
  ActivationOffloadConfig large = config();
  large.min_tensor_elements = kF;
  ActivationOffload offload(device(), large);
  FakePasses passes(stream(), offload, 2, both(), {kA, kF});
  passes.step(one_by_one(1));
  EXPECT_EQ(moved_up(offload), (Moved{0, 2}));  // of exactly that many elements: it moves
  EXPECT_EQ(offload.plan()->at(0).groups[0].bytes, 0);
}

TEST_F(ActivationOffloadTest, AnyLimitOfCopiesGivesTheSameValues) {
  for (const int64_t limit : {0, 1, 2, 8}) {
    ActivationOffloadConfig limited = config();
    limited.max_inflight = limit;
    ActivationOffload offload(device(), limited);
    FakePasses passes(stream(), offload, 5, both(), {kA, kF});
    for (int step = 0; step < 3; ++step) passes.step(first_of_two_stages(4));
    EXPECT_EQ(moved_up(offload), moved_down(offload));
  }
}

// The copies of a recorded pass begin and end in it, and each launch moves them again.
TEST_F(ActivationOffloadTest, APassIsRecordedWithItsCopies) {
  for (const int64_t limit : {0, 2}) {
    ActivationOffloadConfig limited = config();
    limited.max_inflight = limit;
    ActivationOffload offload(device(), limited);
    FakePasses passes(stream(), offload, 5, both(), {kA, kF});
    EXPECT_FALSE(offload.is_settled());
    passes.step(one_by_one(3));
    EXPECT_TRUE(offload.is_settled());
    passes.step(one_by_one(3));
    const Moved eager = moved_up(offload);
    EXPECT_EQ(eager, (Moved{12, 12}));

    offload.begin_step(one_by_one(3), stream());
    offload.before_recording();
    const auto graph = capture(stream(), [&] {
      passes.forward({0, 0});
      passes.backward({0, 0});
    });
    EXPECT_EQ(moved_up(offload), Moved{}) << "recorded, not done";
    for (const int micro : {0, 1}) {
      graph->launch(stream());
      offload.launched({0, micro});
    }
    // The last one keeps its last groups, as ever.
    passes.forward({0, 2});
    passes.backward({0, 2});
    offload.end_step(stream());
    stream().synchronize();
    EXPECT_EQ(moved_up(offload), eager);
    EXPECT_EQ(moved_down(offload), eager);
  }
}

// Groups that are done wait for the launch of a graph, but not beyond their pass.
TEST_F(ActivationOffloadTest, GroupsLeaveAfterTheNextLaunch) {
  ActivationOffloadConfig waiting = config();
  waiting.waits_for_launch = true;
  ActivationOffload offload(device(), waiting);
  const auto save = [&](Tape& tape, Label label, int64_t size) {
    const Tensor x = Tensor::empty(stream(), name_of(label), {size}, DType::F32);
    stream().zero(x);
    tape.save(stream(), label, {x});
  };
  for (const bool launches : {true, false}) {
    offload.begin_step(one_by_one(2), stream());
    Tape tape(Tape::Mode::Record, &offload.policy({0, 0}));
    if (launches) offload.part_launched(stream());
    save(tape, Label::CoreAttn, kA);
    save(tape, Label::ExpertFc1, kF);
    save(tape, Label::CoreAttn, kA);
    // Without graphs, groups leave as they are done.
    EXPECT_EQ(moved_up(offload), launches ? Moved{} : (Moved{1, 1}));
    if (launches) offload.part_launched(stream());
    EXPECT_EQ(moved_up(offload), (Moved{1, 1}));
    tape.save(stream(), Label::Router, {Tensor::empty(stream(), "small", {1}, DType::F32)});
    save(tape, Label::ExpertFc1, kF);
    EXPECT_EQ(moved_up(offload), (Moved{1, 1}));
    tape.forward_done(stream());
    // In the second step the plan is fixed, and the last group of each module stays.
    EXPECT_EQ(moved_up(offload), launches ? (Moved{2, 2}) : (Moved{1, 1}));
    tape.load<1>(stream(), Label::ExpertFc1);
    tape.load<1>(stream(), Label::Router);
    for (const Label label : {Label::CoreAttn, Label::ExpertFc1, Label::CoreAttn})
      tape.load<1>(stream(), label);
    tape.backward_done(stream());
    offload.end_step(stream());
  }
}

// With no copy allowed to be under way, the memory of a group is free when its module is done.
TEST_F(ActivationOffloadTest, ALimitOfZeroFreesMemoryAtOnce) {
  ActivationOffloadConfig limited = config();
  limited.max_inflight = 0;
  ActivationOffload offload(device(), limited);
  FakePasses passes(stream(), offload, 4, both(), {kA, kF});
  offload.begin_step(one_by_one(1), stream());
  passes.forward({0, 0});
  stream().synchronize();
  for (const auto& usage : device().memory().table()) {
    if (usage.name == "core_attn" || usage.name == "expert_fc1") {
      EXPECT_EQ(usage.current, 0) << usage.name;
    }
  }
  passes.backward({0, 0});
}

TEST_F(ActivationOffloadTest, AGivenPlanIsFollowed) {
  ActivationOffload offload(device(), config());
  FakePasses passes(stream(), offload, 3, both(), {kA, kF});
  passes.step(one_by_one(2));
  std::vector<PassGroups> plan = *offload.plan();
  for (PassGroups& pass : plan)
    for (OffloadGroup& group : pass.groups) group.offload = group.module == "core_attn";
  plan[1].groups[0].offload = false;
  offload.set_plan(plan);
  passes.step(one_by_one(2));
  EXPECT_EQ(moved_up(offload), (Moved{2 + 1, 0}));  // the last group of each pass comes back next
}

// The same labels in every record: what a later module saves as well is the later one's.
TEST_F(ActivationOffloadTest, ATensorGoesWithTheModuleThatSavedItLast) {
  ActivationOffloadConfig with_proj = config();
  for (const bool proj_moves : {false, true}) {
    if (proj_moves) with_proj.modules[Label::AttnProj] = "attn_proj";
    ActivationOffload offload(device(), with_proj);
    const std::vector<PassAction> actions = one_by_one(1);
    offload.begin_step(actions, stream());
    Tape tape(Tape::Mode::Record, &offload.policy({0, 0}));
    const Tensor qkv = random_tensor(stream(), {64}, DType::F32, 1);
    const Tensor out = random_tensor(stream(), {16}, DType::F32, 2);
    tape.save(stream(), Label::CoreAttn, {qkv, out});
    tape.save(stream(), Label::AttnProj, {out});
    tape.forward_done(stream());
    TrafficByModule traffic = offload.traffic();
    EXPECT_EQ(traffic["core_attn"].d2h_bytes, 64 * 4);
    EXPECT_EQ(traffic["attn_proj"].d2h_bytes, proj_moves ? 16 * 4 : 0);
    expect_same_bits(stream(), tape.load<1>(stream(), Label::AttnProj)[0], out);
    const auto [qkv_again, out_again] = tape.load<2>(stream(), Label::CoreAttn);
    expect_same_bits(stream(), qkv_again, qkv);
    expect_same_bits(stream(), out_again, out);
    tape.backward_done(stream());
    EXPECT_EQ(offload.traffic()["attn_proj"].h2d_bytes, proj_moves ? 16 * 4 : 0);
  }
}

// A tensor that left with its module is needed early by a module that saved it after that.
TEST_F(ActivationOffloadTest, ATensorThatALaterModuleNeedsComesBackForIt) {
  ActivationOffload offload(device(), config());
  offload.begin_step(one_by_one(1), stream());
  Tape tape(Tape::Mode::Record, &offload.policy({0, 0}));
  const Tensor rows = random_tensor(stream(), {64}, DType::F32, 1);
  const Tensor offsets = random_tensor(stream(), {8}, DType::F32, 2);
  const Tensor other = random_tensor(stream(), {16}, DType::F32, 3);
  tape.save(stream(), Label::ExpertFc1, {rows, offsets});
  tape.save(stream(), Label::CoreAttn, {other});
  tape.save(stream(), Label::ExpertFc2, {offsets});
  tape.forward_done(stream());
  expect_same_bits(stream(), tape.load<1>(stream(), Label::ExpertFc2)[0], offsets);
  expect_same_bits(stream(), tape.load<1>(stream(), Label::CoreAttn)[0], other);
  const auto [rows_again, offsets_again] = tape.load<2>(stream(), Label::ExpertFc1);
  expect_same_bits(stream(), rows_again, rows);
  expect_same_bits(stream(), offsets_again, offsets);
  tape.backward_done(stream());
  EXPECT_EQ(offload.traffic()["expert_fc1"].h2d_bytes, (64 + 8) * 4);
}

TEST_F(ActivationOffloadTest, RecordsOfOneModuleInARowAreOneGroup) {
  ActivationOffloadConfig one = config();
  one.modules = {{Label::QkNorm, "core_attn"}, {Label::CoreAttn, "core_attn"}};
  ActivationOffload offload(device(), one);
  offload.begin_step(one_by_one(1), stream());
  Tape tape(Tape::Mode::Record, &offload.policy({0, 0}));
  const Tensor raw = random_tensor(stream(), {8}, DType::F32, 1);
  const Tensor normed = random_tensor(stream(), {8}, DType::F32, 2);
  tape.save(stream(), Label::QkNorm, {raw});
  tape.save(stream(), Label::CoreAttn, {normed});
  tape.forward_done(stream());
  expect_same_bits(stream(), tape.load<1>(stream(), Label::CoreAttn)[0], normed);
  expect_same_bits(stream(), tape.load<1>(stream(), Label::QkNorm)[0], raw);
  tape.backward_done(stream());
  offload.end_step(stream());
  ASSERT_EQ(offload.plan()->at(0).groups.size(), 1u);
  EXPECT_EQ(offload.plan()->at(0).groups[0].bytes, 64);
}

// The input of a norm whose output is rebuilt leaves after the branch and is back before the
// rebuild.
TEST_F(ActivationOffloadTest, ANormsInputLeavesWithItsBranchAndComesBackFirst) {
  ActivationOffloadConfig norms = config();
  norms.modules = {{Label::AttnNorm, "attn_norm"}, {Label::CoreAttn, "core_attn"}};
  ActivationOffload offload(device(), norms);
  for (int step = 0; step < 2; ++step) {
    offload.begin_step(one_by_one(1), stream());
    Tape tape(Tape::Mode::Record, &offload.policy({0, 0}));
    for (int layer = 0; layer < 2; ++layer) {
      tape.save(stream(), Label::AttnNorm, {random_tensor(stream(), {8}, DType::F32, 1)});
      tape.save(stream(), Label::CoreAttn, {random_tensor(stream(), {4}, DType::F32, 2)});
      tape.save(stream(), Label::AttnProj, {random_tensor(stream(), {2}, DType::F32, 3)});
      // core_attn left with the projection, the norm has not yet.
      EXPECT_EQ(offload.traffic()["attn_norm"].d2h_bytes, layer * 32);
      tape.save(stream(), Label::MlpNorm, {random_tensor(stream(), {2}, DType::F32, 4)});
      EXPECT_EQ(offload.traffic()["attn_norm"].d2h_bytes,
                step == 1 && layer == 1 ? 32 : (layer + 1) * 32);
    }
    tape.forward_done(stream());
    for (int layer = 1; layer >= 0; --layer) {
      tape.load<1>(stream(), Label::MlpNorm);
      tape.load<1>(stream(), Label::AttnProj);
      tape.load<1>(stream(), Label::CoreAttn);
      tape.load<1>(stream(), Label::AttnNorm);
    }
    tape.backward_done(stream());
    offload.end_step(stream());
  }
}

// Bytes count as on the device until they are on the host, and from the begin of their way back.
TEST_F(ActivationOffloadTest, TheLedgerCountsEveryTensorOnceWhereverItIs) {
  ActivationOffloadConfig at_once = config();
  at_once.max_inflight = 0;
  MemoryLedger ledger;
  ActivationOffload offload(device(), at_once, &ledger);
  offload.begin_step(one_by_one(1), stream());
  Tape tape(Tape::Mode::Record, &offload.policy({0, 0}), &ledger);
  for (int layer = 0; layer < 3; ++layer) {
    tape.save(stream(), Label::CoreAttn, {random_tensor(stream(), {kA}, DType::F32, 1)});
    EXPECT_EQ(ledger.current(), 4 * kA);
    tape.save(stream(), Label::Router, {Tensor()});
    EXPECT_EQ(ledger.current(), 0);
  }
  EXPECT_EQ(ledger.peak(), 4 * kA);
  tape.forward_done(stream());
  tape.load<1>(stream(), Label::Router);
  tape.load<1>(stream(), Label::CoreAttn);
  EXPECT_EQ(ledger.current(), 0);
  tape.load<1>(stream(), Label::Router);  // the first group was used: the second one starts back
  EXPECT_EQ(ledger.current(), 4 * kA);
  tape.load<1>(stream(), Label::CoreAttn);
  tape.load<1>(stream(), Label::Router);
  tape.load<1>(stream(), Label::CoreAttn);
  tape.backward_done(stream());
  EXPECT_EQ(ledger.current(), 0);
  EXPECT_EQ(ledger.peak(), 4 * kA);
}

TEST_F(ActivationOffloadTest, CountsTheTimeThatComputeStandsStill) {
  ActivationOffload offload(device(), config());
  FakePasses passes(stream(), offload, 3, both(), {kA, kF});
  passes.step(one_by_one(1));
  const TrafficByModule traffic = offload.traffic();
  for (const auto& [module, moved] : traffic) {
    EXPECT_GE(moved.exposed_s, 0) << module;
    EXPECT_LT(moved.exposed_s, 60) << module;
  }
  EXPECT_EQ(traffic.size(), 2u);
}

// A pass that is bound to a name cannot be mistaken for another one.
TEST_F(ActivationOffloadTest, RefusesAPassTwiceAndOneThatIsNotInTheSchedule) {
  ActivationOffload offload(device(), config());
  offload.begin_step(one_by_one(1), stream());
  offload.policy({0, 0});
  EXPECT_THROW(offload.policy({0, 0}), Error);
  EXPECT_THROW(offload.policy({0, 1}), Error);
}

}  // namespace
}  // namespace ferry::testing
