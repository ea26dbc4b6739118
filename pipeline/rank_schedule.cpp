#include "pipeline/rank_schedule.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "pipeline/simulate.h"

namespace ferry {
namespace {

// How many actions of each rank have begun before some point, as far as messages tell: a vector
// clock.
using Begun = std::vector<int>;

// Takes all ranks through schedules that are proved, and notes what `rank` learns of the others.
class KeptMessages {
 public:
  KeptMessages(const ScheduleShape& shape, const std::vector<std::vector<Action>>& schedules,
               int rank)
      : shape_(shape),
        schedules_(schedules),
        rank_(rank),
        begun_(schedules.size(), Begun(schedules.size(), 0)),
        kept_until_(schedules[static_cast<size_t>(rank)].size(), 0) {}

  std::vector<int> kept_until() {
    for (bool advanced = true; advanced;) {
      advanced = false;
      for (int rank = 0; rank < shape_.num_ranks; ++rank)
        while (step(rank)) advanced = true;
    }
    keep_rest();
    return std::move(kept_until_);
  }

 private:
  // A message that may not have come: the action that sent it, and the number of actions that its
  // receiver has begun when it has come.
  struct Kept {
    int action;
    int receiver_begun;
  };

  static size_t index(Action::Kind kind) { return kind == Action::Kind::Forward ? 0 : 1; }
  const std::vector<Action>& list(int rank) const { return schedules_[static_cast<size_t>(rank)]; }
  Begun& begun(int rank) { return begun_[static_cast<size_t>(rank)]; }
  bool is_stage(int stage) const {
    return stage >= 0 && stage < shape_.num_ranks * shape_.num_chunks;
  }

  // One action of the rank, if it has what it needs.
  bool step(int rank) {
    Begun& begun = this->begun(rank);
    const int number = begun[static_cast<size_t>(rank)];
    if (number == static_cast<int>(list(rank).size())) return false;
    const auto [kind, chunk, micro] = list(rank)[static_cast<size_t>(number)];
    const int stage = chunk * shape_.num_ranks + rank;
    const int direction = kind == Action::Kind::Forward ? 1 : -1;
    if (is_stage(stage - direction)) {
      const auto message = messages_.find({kind, stage, micro});
      if (message == messages_.end()) return false;
      std::transform(begun.begin(), begun.end(), message->second.begin(), begun.begin(),
                     [](int a, int b) { return std::max(a, b); });
      messages_.erase(message);
    }
    if (rank == rank_) let_go(number);
    ++begun[static_cast<size_t>(rank)];
    if (const int next = stage + direction; is_stage(next)) {
      messages_[{kind, next, micro}] = begun;
      if (rank == rank_ && shape_.num_ranks > 1)
        keep(number, {kind, next / shape_.num_ranks, micro});
    }
    return true;
  }

  int receiver(size_t kind) const {
    const int step = kind == index(Action::Kind::Forward) ? 1 : shape_.num_ranks - 1;
    return (rank_ + step) % shape_.num_ranks;
  }
  int known_of_receiver(size_t kind) { return begun(rank_)[static_cast<size_t>(receiver(kind))]; }

  void keep(int number, const Action& taken_by) {
    const size_t kind = index(taken_by.kind);
    const std::vector<Action>& actions = list(receiver(kind));
    // Messages of one kind are taken in the order in which they are sent.
    int& place = place_[kind];
    while (actions.at(static_cast<size_t>(place)) != taken_by) ++place;
    kept_[kind].push_back({number, place + 1});
  }

  void let_go(int number) {
    for (const size_t kind : {0, 1}) {
      std::deque<Kept>& kept = kept_[kind];
      for (; !kept.empty() && kept.front().receiver_begun <= known_of_receiver(kind);
           kept.pop_front())
        kept_until_[static_cast<size_t>(kept.front().action)] = number;
    }
  }

  void keep_rest() {
    const int end = static_cast<int>(list(rank_).size());
    for (const size_t kind : {0, 1})
      for (const Kept& message : kept_[kind])
        kept_until_[static_cast<size_t>(message.action)] =
            known_of_receiver(kind) > 0 ? end : std::min(message.action + 2, end);
  }

  const ScheduleShape& shape_;
  const std::vector<std::vector<Action>>& schedules_;
  int rank_;
  std::vector<Begun> begun_;  // of each rank, before its next action
  // What comes with each message under way, by the pass that needs it: kind, stage, micro-batch.
  std::map<std::tuple<Action::Kind, int, int>, Begun> messages_;
  // Of rank_, forward and backward.
  std::array<std::deque<Kept>, 2> kept_;
  std::array<int, 2> place_{};  // in the receiver's list, of the newest message
  std::vector<int> kept_until_;
};

}  // namespace

RankSchedule proved_schedule(const ScheduleShape& shape, int rank) {
  CHECK(rank >= 0 && rank < shape.num_ranks, "rank ", rank, " of ", shape.num_ranks);
  std::vector<std::vector<Action>> schedules = make_schedules(shape);
  simulate(shape, schedules);
  std::vector<int> kept_until = KeptMessages(shape, schedules, rank).kept_until();
  return {std::move(schedules[static_cast<size_t>(rank)]), std::move(kept_until)};
}

}  // namespace ferry
