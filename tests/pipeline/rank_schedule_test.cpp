#include "pipeline/rank_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "core/check.h"
#include "pipeline/simulate.h"

namespace ferry {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// An action of a rank, by index.
struct Point {
  int rank, action;
  auto operator<=>(const Point&) const = default;
};

// The schedules of all ranks, and who sends to whom.
struct Pipeline {
  explicit Pipeline(const ScheduleShape& shape_in) : shape(shape_in) {
    for (int rank = 0; rank < shape.num_ranks; ++rank)
      ranks.push_back(proved_schedule(shape, rank));
  }

  int num_actions() const { return static_cast<int>(ranks[0].actions.size()); }
  int kept_until(Point sender) const {
    return ranks[static_cast<size_t>(sender.rank)].kept_until[static_cast<size_t>(sender.action)];
  }
  // The action `step` stages on in the direction of the pass, if there is such a stage.
  std::optional<Point> neighbour(Point at, int step) const {
    const Action& action =
        ranks[static_cast<size_t>(at.rank)].actions[static_cast<size_t>(at.action)];
    const int stage = action.chunk * shape.num_ranks + at.rank +
                      (action.kind == Action::Kind::Forward ? step : -step);
    if (stage < 0 || stage >= shape.num_ranks * shape.num_chunks) return std::nullopt;
    const int rank = stage % shape.num_ranks;
    const auto& actions = ranks[static_cast<size_t>(rank)].actions;
    const auto found = std::find(actions.begin(), actions.end(),
                                 Action{action.kind, stage / shape.num_ranks, action.micro});
    CHECK(found != actions.end(), "a pass is missing");
    return Point{rank, static_cast<int>(found - actions.begin())};
  }
  // Who takes the message of an action that sends one to another rank.
  std::optional<Point> receiver(Point sender) const {
    const std::optional<Point> next = neighbour(sender, +1);
    return next && next->rank != sender.rank ? next : std::nullopt;
  }
  // Nothing ever comes back from a receiver.
  bool is_one_way() const {
    return shape.kind == ScheduleKind::ForwardOnly && shape.num_chunks == 1;
  }

  ScheduleShape shape;
  std::vector<RankSchedule> ranks;
};

std::string text(const ScheduleShape& shape) {
  return concat("kind ", static_cast<int>(shape.kind), ", ranks ", shape.num_ranks, ", chunks ",
                shape.num_chunks, ", micro ", shape.num_micro, ", group ", shape.group);
}

void for_many_shapes(const std::function<void(const Pipeline&)>& body) {
  for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward,
                                  ScheduleKind::Interleaved, ScheduleKind::ForwardOnly})
    for (const int p : {1, 2, 3, 4, 5})
      for (const int v : {1, 2, 3, 4})
        for (const int m : {1, 2, p, p + 1, 2 * p, 2 * p + 1})
          for (const int group : {0, p + 1, 2 * p + 1}) {
            const bool groups = kind != ScheduleKind::OneForwardOneBackward;
            if (!groups && (v > 1 || group > 0)) continue;
            const ScheduleShape shape{kind, p, v, m, group};
            const int length = group == 0 ? p : group;
            if (kind == ScheduleKind::Interleaved &&
                (length > m || (m % length > 0 && m % length < p)))
              continue;
            SCOPED_TRACE(text(shape));
            ASSERT_NO_FATAL_FAILURE(body(Pipeline(shape)));
          }
}

// All actions that cannot begin before `from` has.
std::set<Point> all_after(const Pipeline& pipeline, Point from) {
  std::set<Point> reached = {from};
  for (std::vector<Point> open = {from}; !open.empty();) {
    const Point at = open.back();
    open.pop_back();
    std::vector<Point> next;
    if (at.action + 1 < pipeline.num_actions()) next.push_back({at.rank, at.action + 1});
    if (const auto receiver = pipeline.neighbour(at, +1)) next.push_back(*receiver);
    for (const Point& point : next)
      if (reached.insert(point).second) open.push_back(point);
  }
  return reached;
}

TEST(RankSchedule, KeepsMessagesUntilTheyMustHaveCome) {
  for_many_shapes([](const Pipeline& pipeline) {
    for (int rank = 0; rank < pipeline.shape.num_ranks; ++rank) {
      ASSERT_EQ(pipeline.ranks[static_cast<size_t>(rank)].actions,
                make_schedule(pipeline.shape, rank));
      for (int action = 0; action < pipeline.num_actions(); ++action) {
        const Point sender{rank, action};
        const std::optional<Point> receiver = pipeline.receiver(sender);
        int expected = 0;
        if (receiver) {
          const std::set<Point> after = all_after(pipeline, *receiver);
          for (expected = action + 1; expected < pipeline.num_actions(); ++expected)
            if (after.count({rank, expected}) > 0) break;
          if (pipeline.is_one_way()) expected = std::min(action + 2, pipeline.num_actions());
        }
        ASSERT_EQ(pipeline.kept_until(sender), expected) << "rank " << rank << " action " << action;
      }
    }
  });
}

// When a message that a rank sent is let go of: at the beginning of which action.
using Release = std::function<int(const Pipeline&, Point sender)>;

const Release kAsScheduled = [](const Pipeline& pipeline, Point sender) {
  return pipeline.kept_until(sender);
};
const Release kAtOnce = [](const Pipeline&, Point sender) { return sender.action + 1; };
const Release kAtTheEnd = [](const Pipeline& pipeline, Point) { return pipeline.num_actions(); };

// Time of a run in which a transfer starts when both sides are ready, the receiver from the
// beginning of the action before it on, and in which to let go of a message is to wait for the end
// of its transfer. Nothing if ranks wait for each other.
std::optional<double> makespan(const Pipeline& pipeline, const Release& release,
                               const ActionCosts& costs = {}) {
  std::vector<std::vector<double>> begin(pipeline.ranks.size()), end = begin;
  const auto known = [](const std::vector<std::vector<double>>& times, Point at) {
    return at.action < static_cast<int>(times[static_cast<size_t>(at.rank)].size());
  };
  const auto of = [](const std::vector<std::vector<double>>& times, Point at) {
    return times[static_cast<size_t>(at.rank)][static_cast<size_t>(at.action)];
  };
  const auto transferred = [&](Point sender, Point receiver) -> std::optional<double> {
    const Point posts{receiver.rank, receiver.action - 1};
    if (!known(end, sender) || (receiver.action > 0 && !known(begin, posts))) return std::nullopt;
    return std::max(of(end, sender), receiver.action > 0 ? of(begin, posts) : 0) + costs.message;
  };
  // When an action begins, if what it waits for is known.
  const auto begins = [&](Point at) -> std::optional<double> {
    double time = at.action == 0 ? 0 : of(end, {at.rank, at.action - 1});
    if (const auto source = pipeline.neighbour(at, -1)) {
      const std::optional<double> came =
          source->rank == at.rank ? of(end, *source) : transferred(*source, at);
      if (!came) return std::nullopt;
      time = std::max(time, *came);
    }
    for (Point sender{at.rank, 0}; sender.action < at.action; ++sender.action) {
      const std::optional<Point> receiver = pipeline.receiver(sender);
      if (!receiver || release(pipeline, sender) != at.action) continue;
      const std::optional<double> went = transferred(sender, *receiver);
      if (!went) return std::nullopt;
      time = std::max(time, *went);
    }
    return time;
  };
  double last = 0;
  for (bool advanced = true; advanced;) {
    advanced = false;
    for (int rank = 0; rank < pipeline.shape.num_ranks; ++rank) {
      auto& own = begin[static_cast<size_t>(rank)];
      if (static_cast<int>(own.size()) == pipeline.num_actions()) continue;
      const Point at{rank, static_cast<int>(own.size())};
      const std::optional<double> time = begins(at);
      if (!time) continue;
      const auto& actions = pipeline.ranks[static_cast<size_t>(rank)].actions;
      const bool forward = actions[own.size()].kind == Action::Kind::Forward;
      own.push_back(*time);
      end[static_cast<size_t>(rank)].push_back(*time + (forward ? costs.forward : costs.backward));
      last = std::max(last, end[static_cast<size_t>(rank)].back());
      advanced = true;
    }
  }
  for (const auto& times : begin)
    if (static_cast<int>(times.size()) < pipeline.num_actions()) return std::nullopt;
  return last;
}

TEST(RankSchedule, LettingGoWaitsForNothing) {
  for_many_shapes([](const Pipeline& pipeline) {
    for (const ActionCosts& costs :
         {ActionCosts{}, ActionCosts{1, 2, 0.75}, ActionCosts{3, 1, 1}, ActionCosts{1, 2, 20}}) {
      const std::optional<double> time = makespan(pipeline, kAsScheduled, costs);
      ASSERT_TRUE(time.has_value());
      if (pipeline.is_one_way() && costs.message > costs.forward) continue;
      ASSERT_EQ(*time, makespan(pipeline, kAtTheEnd, costs));
    }
  });
}

// Why messages are kept at all.
TEST(RankSchedule, LettingGoAtOnceWaitsForOthers) {
  const auto simulated = [](const ScheduleShape& shape) {
    return simulate(shape, make_schedules(shape)).makespan;
  };
  const Pipeline plain({.num_ranks = 4, .num_micro = 8});
  EXPECT_EQ(makespan(plain, kAsScheduled), simulated(plain.shape));
  const ActionCosts slow{.message = 0.5};
  EXPECT_GT(makespan(plain, kAtOnce, slow).value(), makespan(plain, kAsScheduled, slow).value());
  for (const int p : {2, 3, 4}) {
    const ScheduleShape interleaved{ScheduleKind::Interleaved, p, 2, 2 * p};
    EXPECT_EQ(makespan(Pipeline(interleaved), kAsScheduled), simulated(interleaved));
    EXPECT_FALSE(makespan(Pipeline(interleaved), kAtOnce).has_value()) << p;
  }
}

// The most messages that each rank has sent and not let go of.
std::vector<int> most_kept(const ScheduleShape& shape) {
  const Pipeline pipeline(shape);
  std::vector<int> result;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    int most = 0;
    for (int now = 0; now < pipeline.num_actions(); ++now) {
      int kept = 0;
      for (int action = 0; action <= now; ++action)
        if (pipeline.kept_until({rank, action}) > now) ++kept;
      most = std::max(most, kept);
    }
    result.push_back(most);
  }
  return result;
}

TEST(RankSchedule, FewMessagesAreKept) {
  EXPECT_THAT(most_kept({.num_micro = 8}), ElementsAre(0));
  EXPECT_THAT(most_kept({.num_ranks = 2, .num_micro = 8}), ElementsAre(2, 2));
  // min(p, p - rank + 1), however many micro-batches there are.
  for (const int m : {4, 8, 32})
    EXPECT_THAT(most_kept({.num_ranks = 4, .num_micro = m}), ElementsAre(4, 4, 3, 2)) << m;
  for (const int m : {8, 32}) {
    EXPECT_THAT(most_kept({ScheduleKind::Interleaved, 2, 2, m}), ElementsAre(4, 4)) << m;
    EXPECT_THAT(most_kept({ScheduleKind::Interleaved, 4, 2, m}), ElementsAre(7, 7, 5, 5)) << m;
    EXPECT_THAT(most_kept({ScheduleKind::Interleaved, 4, 4, m}), ElementsAre(7, 7, 5, 5)) << m;
    EXPECT_THAT(most_kept({ScheduleKind::ForwardOnly, 4, 1, m}), ElementsAre(2, 2, 2, 0)) << m;
    EXPECT_THAT(most_kept({ScheduleKind::ForwardOnly, 4, 2, m}), ElementsAre(8, 8, 8, 4)) << m;
    // Nothing comes back before the last forward pass is done, and that keeps far more anyway.
    EXPECT_THAT(most_kept({ScheduleKind::GPipe, 4, 1, m}), Each(m)) << m;
  }
}

TEST(RankSchedule, RefusesWhatCannotBe) {
  EXPECT_THROW(proved_schedule({ScheduleKind::Interleaved, 4, 2, 3}, 0), Error);
  EXPECT_THROW(proved_schedule({.num_ranks = 2}, 2), Error);
  EXPECT_THROW(proved_schedule({.num_ranks = 2}, -1), Error);
}

}  // namespace
}  // namespace ferry
