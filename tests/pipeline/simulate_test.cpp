#include "pipeline/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "core/check.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Lists = std::vector<std::vector<Action>>;

constexpr Action::Kind kForward = Action::Kind::Forward;
constexpr Action::Kind kBackward = Action::Kind::Backward;

Simulation simulated(const ScheduleShape& shape, const ActionCosts& costs = {}) {
  return simulate(shape, make_schedules(shape), costs);
}

std::vector<int> peaks(const Simulation& simulation) {
  std::vector<int> result;
  for (const RankSimulation& rank : simulation.ranks) result.push_back(rank.peak_in_flight);
  return result;
}

// What the simulator says of the schedules of `shape` with some damage.
std::string complaint(const ScheduleShape& shape, const std::function<void(Lists&)>& damage) {
  Lists lists = make_schedules(shape);
  damage(lists);
  try {
    simulate(shape, lists);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Internal) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "not noticed";
  return "";
}

std::vector<Action>::iterator find(std::vector<Action>& list, const Action& action) {
  const auto found = std::find(list.begin(), list.end(), action);
  CHECK(found != list.end(), "no ", action_text(action, 2));
  return found;
}

const ScheduleShape kPlain{.num_ranks = 3, .num_micro = 4};
const ScheduleShape kInterleaved{ScheduleKind::Interleaved, 2, 2, 4};

TEST(Simulate, OneRankHasNoBubble) {
  const Simulation simulation = simulated({.num_micro = 5});
  EXPECT_EQ(simulation.makespan, 15);
  EXPECT_EQ(simulation.bubble, 0);
  EXPECT_THAT(peaks(simulation), ElementsAre(1));
}

TEST(Simulate, BubbleIsThatOfTheTheory) {
  for (const int p : {2, 3, 4, 8})
    for (const int m : {p, 2 * p, 5 * p})
      for (const double forward : {0.5, 1.0, 2.0}) {
        const ActionCosts costs{.forward = forward, .backward = 2};
        for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward}) {
          const ScheduleShape shape{.kind = kind, .num_ranks = p, .num_micro = m};
          EXPECT_DOUBLE_EQ(simulated(shape, costs).bubble, (p - 1.0) / m) << p << ' ' << m;
        }
        for (const int v : {2, 3, 4}) {
          const ScheduleShape shape{ScheduleKind::Interleaved, p, v, m};
          EXPECT_DOUBLE_EQ(simulated(shape, costs).bubble, (p - 1.0) / (m * v))
              << p << ' ' << m << ' ' << v;
        }
      }
}

TEST(Simulate, PassesInFlight) {
  EXPECT_THAT(peaks(simulated({.num_ranks = 4, .num_micro = 8})), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(peaks(simulated({.num_ranks = 4, .num_micro = 2})), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(peaks(simulated({.kind = ScheduleKind::GPipe, .num_ranks = 4, .num_micro = 8})),
              ElementsAre(8, 8, 8, 8));
  // 2 (p - 1 - rank) + (v - 1) p + 1.
  const Simulation interleaved = simulated({ScheduleKind::Interleaved, 4, 2, 16});
  EXPECT_THAT(peaks(interleaved), ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(interleaved.ranks[0].peak_of_chunk, ElementsAre(8, 4));
  EXPECT_THAT(peaks(simulated({ScheduleKind::ForwardOnly, 4, 2, 16})), Each(0));
}

TEST(Simulate, MessagesTakeTime) {
  const ScheduleShape shape{.num_ranks = 2, .num_micro = 1};
  // F on rank 0, message, F and B on rank 1, message, B on rank 0.
  EXPECT_EQ(simulated(shape, {.forward = 3, .backward = 5, .message = 7}).makespan, 30);
  const Simulation evaluation =
      simulated({ScheduleKind::ForwardOnly, 2, 1, 3}, {.forward = 3, .message = 7});
  EXPECT_EQ(evaluation.makespan, 3 + 7 + 3 * 3);
  EXPECT_EQ(evaluation.ranks[0].work, 9);
}

// Where the action that sends the message of `taker` must stand; no place if nobody sends one.
std::optional<OrderedAction> sender_of(const ScheduleShape& shape, const Lists& lists,
                                       const OrderedAction& taker) {
  const Action action =
      lists.at(static_cast<size_t>(taker.rank)).at(static_cast<size_t>(taker.action));
  const int stage =
      action.chunk * shape.num_ranks + taker.rank + (action.kind == kForward ? -1 : 1);
  if (stage < 0 || stage == shape.num_ranks * shape.num_chunks) return std::nullopt;
  const int rank = stage % shape.num_ranks;
  const std::vector<Action>& list = lists.at(static_cast<size_t>(rank));
  const auto sent_by = std::find(list.begin(), list.end(),
                                 Action{action.kind, stage / shape.num_ranks, action.micro});
  return OrderedAction{rank, static_cast<int>(sent_by - list.begin())};
}

TEST(Simulate, OrderHasEachActionBehindWhatItNeeds) {
  for (const ScheduleShape& shape :
       {kPlain, kInterleaved, ScheduleShape{ScheduleKind::GPipe, 3, 2, 4},
        ScheduleShape{ScheduleKind::ForwardOnly, 2, 2, 4}, ScheduleShape{.num_micro = 3}}) {
    const Lists lists = make_schedules(shape);
    const std::vector<OrderedAction> order = simulate(shape, lists).order;
    std::vector<int> next(lists.size());
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(order[i].action, next.at(static_cast<size_t>(order[i].rank))++);
      const std::optional<OrderedAction> sender = sender_of(shape, lists, order[i]);
      ASSERT_EQ(order[i].sender >= 0, sender.has_value());
      if (!sender) continue;
      ASSERT_LT(order[i].sender, static_cast<int>(i));
      EXPECT_EQ(order[static_cast<size_t>(order[i].sender)].rank, sender->rank);
      EXPECT_EQ(order[static_cast<size_t>(order[i].sender)].action, sender->action);
    }
    for (size_t rank = 0; rank < lists.size(); ++rank)
      EXPECT_EQ(next[rank], static_cast<int>(lists[rank].size()));
  }
}

TEST(Simulate, Text) {
  EXPECT_EQ(simulation_text(simulated({.num_ranks = 4, .num_micro = 8})),
            "bubble 37.5 % of the work, most passes in flight 4 3 2 1\n");
  EXPECT_EQ(simulation_text(simulated({ScheduleKind::Interleaved, 2, 3, 16})),
            "bubble 2.1 % of the work, most passes in flight 7 5\n");
  EXPECT_EQ(simulation_text(simulated({ScheduleKind::ForwardOnly, 2, 1, 4})),
            "bubble 25.0 % of the work\n");
}

TEST(Simulate, FindsMissingPasses) {
  EXPECT_THAT(complaint(kPlain, [](Lists& lists) { lists[1].pop_back(); }),
              HasSubstr("rank 1 never makes B3"));
  EXPECT_THAT(complaint(kPlain, [](Lists& lists) { lists.pop_back(); }),
              HasSubstr("2 lists for 3 ranks"));
  EXPECT_THAT(complaint({ScheduleKind::ForwardOnly, 2, 2, 3},
                        [](Lists& lists) { lists[1].erase(lists[1].begin() + 4); }),
              HasSubstr("rank 1 never makes F2.0"));
}

TEST(Simulate, FindsPassesMadeTwice) {
  EXPECT_THAT(complaint(kPlain,
                        [](Lists& lists) {
                          lists[2].push_back({kBackward, 0, 2});
                        }),
              HasSubstr("rank 2 makes B2 twice"));
  EXPECT_THAT(complaint(kInterleaved,
                        [](Lists& lists) {
                          *find(lists[0], {kForward, 1, 2}) = {kForward, 0, 2};
                        }),
              HasSubstr("rank 0 makes F2.0 twice"));
}

TEST(Simulate, FindsUnknownPasses) {
  for (const Action action : {Action{kForward, 0, 4}, Action{kForward, 0, -1},
                              Action{kForward, 1, 0}, Action{kBackward, -1, 0}})
    EXPECT_THAT(complaint(kPlain, [&](Lists& lists) { lists[0].push_back(action); }),
                HasSubstr("rank 0 has no pass " + action_text(action, 1)));
  EXPECT_THAT(complaint({ScheduleKind::ForwardOnly, 2, 1, 3},
                        [](Lists& lists) {
                          lists[1].push_back({kBackward, 0, 0});
                        }),
              HasSubstr("rank 1 goes backward in evaluation"));
}

TEST(Simulate, FindsABackwardPassBeforeItsForwardPass) {
  EXPECT_THAT(complaint(kPlain, [](Lists& lists) { std::swap(lists[2][0], lists[2][1]); }),
              HasSubstr("rank 2 makes B0 before its forward pass"));
}

// Messages are not labelled, so the wrong one would be taken for the right one.
TEST(Simulate, FindsMessagesInAnotherOrder) {
  EXPECT_THAT(complaint({ScheduleKind::GPipe, 3, 1, 4},
                        [](Lists& lists) { std::swap(lists[1][1], lists[1][2]); }),
              HasSubstr("rank 1 needs the message for F2 from rank 0, but the next one is for F1"));
  // Gradients come back from the last rank as 0 1 2 3.
  EXPECT_THAT(complaint({ScheduleKind::GPipe, 3, 1, 4},
                        [](Lists& lists) { std::swap(lists[1][6], lists[1][7]); }),
              HasSubstr("rank 1 needs the message for B3 from rank 2, but the next one is for B2"));
  // Around the ring, from chunk 0 of the last rank to chunk 1 of the first.
  EXPECT_THAT(
      complaint(
          kInterleaved,
          [](Lists& lists) {
            std::iter_swap(find(lists[0], {kForward, 1, 0}), find(lists[0], {kForward, 1, 1}));
          }),
      HasSubstr("rank 0 needs the message for F1.1 from rank 1, but the next one is for F0.1"));
}

TEST(Simulate, FindsDeadlocks) {
  // Rank 0 wants to go back before it has sent what the gradient depends on.
  const std::string text = complaint({.num_ranks = 2, .num_micro = 2}, [](Lists& lists) {
    lists[0] = {{kForward, 0, 0}, {kBackward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 1}};
    lists[1] = {{kForward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 0}, {kBackward, 0, 1}};
  });
  EXPECT_THAT(text, AllOf(HasSubstr("pipeline schedule: deadlock:"),
                          HasSubstr("\n  rank 0 at B0 waits for B0 of rank 1"),
                          HasSubstr("\n  rank 1 at F1 waits for F1 of rank 0")));
  EXPECT_THAT(complaint(kInterleaved,
                        [](Lists& lists) {
                          std::rotate(lists[0].begin(), find(lists[0], {kForward, 1, 0}),
                                      find(lists[0], {kForward, 1, 0}) + 1);
                        }),
              AllOf(HasSubstr("\n  rank 0 at F0.1 waits for F0.0 of rank 1"),
                    HasSubstr("\n  rank 1 at F0.0 waits for F0.0 of rank 0")));
}

// The refusal of an interleaved schedule whose groups are too small is not caution.
TEST(Simulate, GroupsThatAreTooSmallWouldWait) {
  const ScheduleShape shape{ScheduleKind::Interleaved, 4, 4, 8, 4};
  const auto with_group = [&](int group) {
    // The order of groups of `group`, with the warm-up that they would have.
    Lists lists;
    for (int rank = 0; rank < 4; ++rank) {
      ScheduleShape any = shape;
      any.group = group;
      any.kind = ScheduleKind::GPipe;
      const std::vector<Action> all = make_schedule(any, rank);
      const int ahead = 2 * (3 - rank) + 3 * group;
      std::vector<Action> list(all.begin(), all.begin() + ahead);
      for (int i = 0; i < 32; ++i) {
        if (ahead + i < 32) list.push_back(all[static_cast<size_t>(ahead + i)]);
        list.push_back(all[static_cast<size_t>(32 + i)]);
      }
      lists.push_back(list);
    }
    return lists;
  };
  EXPECT_EQ(with_group(4), make_schedules(shape));
  EXPECT_NO_THROW(simulate(shape, with_group(4)));
  EXPECT_THAT(complaint(shape, [&](Lists& lists) { lists = with_group(2); }),
              HasSubstr("deadlock"));
}

TEST(Simulate, CostsMustBePositive) {
  EXPECT_THROW(simulated(kPlain, {.forward = 0}), Error);
  EXPECT_THROW(simulated(kPlain, {.message = -1}), Error);
}

}  // namespace
}  // namespace ferry
