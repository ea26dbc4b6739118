#include "pipeline/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "core/check.h"

namespace ferry {
namespace {

// A pass of the model: which stage (over all ranks and chunks), which micro-batch, which direction.
struct Pass {
  Action::Kind kind;
  int stage;
  int micro;
  bool operator==(const Pass&) const = default;
};

struct Sent {
  Pass needed_by;
  int sender;  // index in the order
  double arrives;
};

// Sending rank, receiving rank, meaning of the messages.
using Channel = std::tuple<int, int, Action::Kind>;

class Simulator {
 public:
  Simulator(const ScheduleShape& shape, const std::vector<std::vector<Action>>& schedules,
            const ActionCosts& costs)
      : shape_(shape), schedules_(schedules), costs_(costs) {}

  Simulation run() {
    const size_t num_ranks = static_cast<size_t>(shape_.num_ranks);
    if (schedules_.size() != num_ranks)
      fail(ExitCode::Internal, "pipeline schedule: ", schedules_.size(), " lists for ", num_ranks,
           " ranks");
    for (int rank = 0; rank < shape_.num_ranks; ++rank) check_passes(rank);
    next_.assign(num_ranks, 0);
    time_.assign(num_ranks, 0);
    // Times follow from the lists alone, so the order in which ranks advance does not matter.
    for (bool advanced = true; advanced;) {
      advanced = false;
      for (int rank = 0; rank < shape_.num_ranks; ++rank)
        while (step(rank)) advanced = true;
    }
    check_end();
    return summary();
  }

 private:
  int num_stages() const { return shape_.num_ranks * shape_.num_chunks; }
  const std::vector<Action>& list(int rank) const { return schedules_[static_cast<size_t>(rank)]; }
  double cost(const Action& action) const {
    return action.kind == Action::Kind::Forward ? costs_.forward : costs_.backward;
  }
  std::string text(const Action& action) const { return action_text(action, shape_.num_chunks); }
  std::string text(const Pass& pass) const {
    return text(Action{pass.kind, pass.stage / shape_.num_ranks, pass.micro});
  }

  template <class... Parts>
  [[noreturn]] static void wrong(const Parts&... parts) {
    fail(ExitCode::Internal, "pipeline schedule: ", parts...);
  }

  // Every pass once, on this rank, and forward before backward.
  void check_passes(int rank) const {
    const bool backward = shape_.kind != ScheduleKind::ForwardOnly;
    const size_t num_passes = static_cast<size_t>(shape_.num_chunks * shape_.num_micro);
    std::vector<bool> done[2] = {std::vector<bool>(num_passes), std::vector<bool>(num_passes)};
    for (const Action& action : list(rank)) {
      if (action.chunk < 0 || action.chunk >= shape_.num_chunks || action.micro < 0 ||
          action.micro >= shape_.num_micro)
        wrong("rank ", rank, " has no pass ", text(action));
      const bool is_forward = action.kind == Action::Kind::Forward;
      if (!is_forward && !backward) wrong("rank ", rank, " goes backward in evaluation");
      const size_t pass = static_cast<size_t>(action.chunk * shape_.num_micro + action.micro);
      if (done[is_forward ? 0 : 1][pass]) wrong("rank ", rank, " makes ", text(action), " twice");
      if (!is_forward && !done[0][pass])
        wrong("rank ", rank, " makes ", text(action), " before its forward pass");
      done[is_forward ? 0 : 1][pass] = true;
    }
    for (const Action::Kind kind : {Action::Kind::Forward, Action::Kind::Backward}) {
      if (kind == Action::Kind::Backward && !backward) continue;
      for (size_t pass = 0; pass < num_passes; ++pass)
        if (!done[kind == Action::Kind::Forward ? 0 : 1][pass])
          wrong("rank ", rank, " never makes ",
                text(Action{kind, static_cast<int>(pass) / shape_.num_micro,
                            static_cast<int>(pass) % shape_.num_micro}));
    }
  }

  Pass pass_of(int rank, const Action& action) const {
    return {action.kind, action.chunk * shape_.num_ranks + rank, action.micro};
  }

  // The stage whose message a pass needs (step -1) or that needs its message (step +1), in the
  // direction of the pass.
  std::optional<int> neighbour(const Pass& pass, int step) const {
    const int stage = pass.stage + (pass.kind == Action::Kind::Forward ? step : -step);
    if (stage < 0 || stage >= num_stages()) return std::nullopt;
    return stage;
  }

  // One action of the rank, if it has what it needs.
  bool step(int rank) {
    size_t& next = next_[static_cast<size_t>(rank)];
    if (next == list(rank).size()) return false;
    const Action& action = list(rank)[next];
    const Pass pass = pass_of(rank, action);
    double& time = time_[static_cast<size_t>(rank)];
    int message_sender = -1;
    if (const std::optional<int> source = neighbour(pass, -1)) {
      const int sender = *source % shape_.num_ranks;
      std::deque<Sent>& channel = channels_[{sender, rank, pass.kind}];
      if (channel.empty()) return false;
      const Sent sent = channel.front();
      if (sent.needed_by != pass)
        wrong("rank ", rank, " needs the message for ", text(action), " from rank ", sender,
              ", but the next one is for ", text(sent.needed_by));
      channel.pop_front();
      message_sender = sent.sender;
      time = std::max(time, sent.arrives);
    }
    time += cost(action);
    if (const std::optional<int> target = neighbour(pass, +1))
      channels_[{rank, *target % shape_.num_ranks, pass.kind}].push_back(
          {{pass.kind, *target, pass.micro},
           static_cast<int>(order_.size()),
           time + costs_.message});
    order_.push_back({rank, static_cast<int>(next), message_sender});
    ++next;
    return true;
  }

  void check_end() const {
    std::string waiting;
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      const size_t next = next_[static_cast<size_t>(rank)];
      if (next == list(rank).size()) continue;
      const Action& action = list(rank)[next];
      const std::optional<int> source = neighbour(pass_of(rank, action), -1);
      CHECK(source.has_value(), "rank ", rank, " stands at ", text(action), " and needs nothing");
      waiting += concat("\n  rank ", rank, " at ", text(action), " waits for ",
                        text(Pass{action.kind, *source, action.micro}), " of rank ",
                        *source % shape_.num_ranks);
    }
    if (!waiting.empty()) wrong("deadlock:", waiting);
    for (const auto& [channel, messages] : channels_)
      CHECK(messages.empty(), "a message from rank ", std::get<0>(channel), " is left over");
  }

  Simulation summary() {
    Simulation result;
    result.order = std::move(order_);
    result.makespan = *std::max_element(time_.begin(), time_.end());
    double most_work = 0;
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      result.ranks.push_back(in_flight(rank));
      for (const Action& action : list(rank)) result.ranks.back().work += cost(action);
      most_work = std::max(most_work, result.ranks.back().work);
    }
    result.bubble = (result.makespan - most_work) / most_work;
    return result;
  }

  RankSimulation in_flight(int rank) const {
    RankSimulation result;
    result.peak_of_chunk.assign(static_cast<size_t>(shape_.num_chunks), 0);
    // In evaluation nothing is kept.
    if (shape_.kind == ScheduleKind::ForwardOnly) return result;
    std::vector<int> now(static_cast<size_t>(shape_.num_chunks));
    int all = 0;
    for (const Action& action : list(rank)) {
      const int change = action.kind == Action::Kind::Forward ? 1 : -1;
      const size_t chunk = static_cast<size_t>(action.chunk);
      now[chunk] += change;
      all += change;
      result.peak_of_chunk[chunk] = std::max(result.peak_of_chunk[chunk], now[chunk]);
      result.peak_in_flight = std::max(result.peak_in_flight, all);
    }
    return result;
  }

  const ScheduleShape& shape_;
  const std::vector<std::vector<Action>>& schedules_;
  const ActionCosts& costs_;
  std::map<Channel, std::deque<Sent>> channels_;
  std::vector<size_t> next_;  // of each rank's list
  std::vector<double> time_;  // at which each rank is done with what it has made
  std::vector<OrderedAction> order_;
};

}  // namespace

Simulation simulate(const ScheduleShape& shape, const std::vector<std::vector<Action>>& schedules,
                    const ActionCosts& costs) {
  CHECK(shape.num_ranks >= 1 && shape.num_chunks >= 1 && shape.num_micro >= 1 &&
            costs.forward > 0 && costs.backward > 0 && costs.message >= 0,
        "nothing to simulate");
  return Simulator(shape, schedules, costs).run();
}

std::string simulation_text(const Simulation& simulation) {
  const int64_t tenths = std::llround(1000 * simulation.bubble);
  std::string text = concat("bubble ", tenths / 10, '.', tenths % 10, " % of the work");
  // In evaluation nothing stays in flight.
  std::string peaks;
  for (const RankSimulation& rank : simulation.ranks) {
    if (rank.peak_in_flight > 0) peaks += concat(' ', rank.peak_in_flight);
  }
  if (!peaks.empty()) text += ", most passes in flight" + peaks;
  return text + '\n';
}

}  // namespace ferry
