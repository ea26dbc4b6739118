#include "pipeline/rank_schedule.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "pipeline/simulate.h"

namespace ferry {
namespace {

// How many actions of each rank have begun before some point, as far as messages tell: a vector
// clock.
using Begun = std::vector<int>;

void learn(Begun& known, const Begun& told) {
  std::transform(known.begin(), known.end(), told.begin(), known.begin(),
                 [](int a, int b) { return std::max(a, b); });
}

// What `rank` knows at the beginning of each of its actions.
std::vector<Begun> known_by(int rank, const std::vector<OrderedAction>& order, int num_ranks) {
  const Begun nothing(static_cast<size_t>(num_ranks), 0);
  std::vector<Begun> known(static_cast<size_t>(num_ranks), nothing);  // of each rank, by now
  std::vector<Begun> told;  // by the message of each action; gone when it was taken
  std::vector<Begun> result;
  for (const OrderedAction& at : order) {
    Begun& own = known[static_cast<size_t>(at.rank)];
    if (at.sender >= 0) learn(own, std::exchange(told[static_cast<size_t>(at.sender)], {}));
    if (at.rank == rank) result.push_back(own);
    ++own[static_cast<size_t>(at.rank)];
    told.push_back(own);
  }
  return result;
}

// RankSchedule::kept_until.
std::vector<int> kept_until(int rank, const std::vector<OrderedAction>& order, int num_ranks) {
  const std::vector<Begun> known = known_by(rank, order, num_ranks);
  const int end = static_cast<int>(known.size());
  std::vector<int> result(known.size(), 0);
  for (const OrderedAction& taker : order) {
    if (taker.sender < 0 || taker.rank == rank) continue;
    const OrderedAction& sender = order[static_cast<size_t>(taker.sender)];
    if (sender.rank != rank) continue;
    const auto begun = [&](const Begun& at) { return at[static_cast<size_t>(taker.rank)]; };
    const auto tells = std::partition_point(
        known.begin(), known.end(), [&](const Begun& at) { return begun(at) <= taker.action; });
    const bool nothing_comes_back = begun(known.back()) == 0;
    result[static_cast<size_t>(sender.action)] = nothing_comes_back
                                                     ? std::min(sender.action + 2, end)
                                                     : static_cast<int>(tells - known.begin());
  }
  return result;
}

}  // namespace

RankSchedule proved_schedule(const ScheduleShape& shape, int rank) {
  CHECK(rank >= 0 && rank < shape.num_ranks, "rank ", rank, " of ", shape.num_ranks);
  std::vector<std::vector<Action>> schedules = make_schedules(shape);
  const Simulation simulation = simulate(shape, schedules);
  return {std::move(schedules[static_cast<size_t>(rank)]),
          kept_until(rank, simulation.order, shape.num_ranks)};
}

}  // namespace ferry
