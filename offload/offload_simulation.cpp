#include "offload/offload_simulation.h"

#include <algorithm>
#include <deque>

#include "core/check.h"

namespace ferry {
namespace {

// The part of its share of backward for which a group is in use; work that needs no group follows.
constexpr double kPartInUse = 0.5;

// Memory that is taken (bytes > 0) or given back.
struct MemoryEvent {
  double time = 0;
  int64_t bytes = 0;
  const std::string* module = nullptr;
};

struct GroupState {
  const OffloadGroup* group;
  double in_host = 0;                    // when its copy away is done
  std::optional<double> on_device = {};  // when its copy back is done, once that was started
};

struct PassState {
  size_t position = 0;  // in the order of backward passes
  std::vector<GroupState> groups;
  std::vector<size_t> away;  // groups on the host that were not started back
  std::map<std::string, std::deque<double>> under_way;  // ends of copies away, by module
  bool forward_done = false;
};

class Simulator {
 public:
  Simulator(std::span<const PassGroups> passes, const OffloadConditions& conditions, bool moves)
      : conditions_(conditions), moves_(moves) {
    for (size_t position = 0; position < passes.size(); ++position) {
      PassState& pass = passes_.emplace_back();
      pass.position = position;
      for (const OffloadGroup& group : passes[position].groups)
        pass.groups.push_back({.group = &group});
      position_of_[passes[position].pass] = position;
    }
  }

  void run(std::span<const PassAction> actions) {
    for (const PassAction& action : actions) {
      PassState& pass = passes_[position_of_.at(action.pass)];
      const PassSeconds& seconds = conditions_.chunks.at(static_cast<size_t>(action.pass.chunk));
      if (action.forward)
        forward(pass, seconds.forward);
      else
        backward(pass, seconds.backward);
    }
  }

  double now() const { return now_; }
  double exposed_d2h() const { return exposed_d2h_; }
  double exposed_h2d() const { return exposed_h2d_; }
  const TrafficByModule& traffic() const { return traffic_; }

  // The most bytes at once, and of which modules.
  std::pair<int64_t, std::map<std::string, int64_t>> peak() {
    // What is given back at a moment makes room for what is taken then.
    std::stable_sort(memory_.begin(), memory_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.time, a.bytes > 0) < std::pair(b.time, b.bytes > 0);
    });
    int64_t bytes = 0, peak = 0;
    size_t peak_idx = 0;
    for (size_t i = 0; i < memory_.size(); ++i) {
      bytes += memory_[i].bytes;
      if (bytes <= peak) continue;
      peak = bytes;
      peak_idx = i;
    }
    std::map<std::string, int64_t> by_module;
    for (size_t i = 0; peak > 0 && i <= peak_idx; ++i)
      by_module[*memory_[i].module] += memory_[i].bytes;
    std::erase_if(by_module, [](const auto& entry) { return entry.second == 0; });
    return {peak, by_module};
  }

 private:
  void forward(PassState& pass, double seconds) {
    if (pass.groups.empty()) now_ += seconds;
    for (size_t i = 0; i < pass.groups.size(); ++i) {
      now_ += seconds / static_cast<double>(pass.groups.size());
      const OffloadGroup& group = *pass.groups[i].group;
      memory_.push_back({now_, group.bytes, &group.module});
      if (moves_ && group.offload && group.bytes > 0) copy_away(pass, i);
    }
    pass.forward_done = true;
  }

  void backward(PassState& pass, double seconds) {
    if (pass.groups.empty()) now_ += seconds;
    for (size_t i = pass.groups.size(); i-- > 0;) {
      GroupState& state = pass.groups[i];
      const OffloadGroup& group = *state.group;
      if (!pass.away.empty() && pass.away.back() == i) reload_newest(pass);
      if (state.on_device) exposed_h2d_ += wait_until(*state.on_device, group.module);
      const double slice = seconds / static_cast<double>(pass.groups.size());
      now_ += kPartInUse * slice;
      memory_.push_back({now_, -group.bytes, &group.module});
      prefetch(pass);
      now_ += (1 - kPartInUse) * slice;
    }
  }

  void copy_away(PassState& pass, size_t group_idx) {
    GroupState& state = pass.groups[group_idx];
    const OffloadGroup& group = *state.group;
    pass.away.push_back(group_idx);
    to_host_free_ = std::max(to_host_free_, now_) +
                    static_cast<double>(group.bytes) / conditions_.d2h_bytes_per_s;
    state.in_host = to_host_free_;
    memory_.push_back({to_host_free_, -group.bytes, &group.module});
    traffic_[group.module].d2h_bytes += group.bytes;
    if (!conditions_.max_inflight) return;
    std::deque<double>& under_way = pass.under_way[group.module];
    under_way.push_back(to_host_free_);
    while (std::ssize(under_way) > *conditions_.max_inflight) {
      exposed_d2h_ += wait_until(under_way.front(), group.module);
      under_way.pop_front();
    }
  }

  void reload(GroupState& state) {
    const OffloadGroup& group = *state.group;
    to_device_free_ = std::max({to_device_free_, now_, state.in_host}) +
                      static_cast<double>(group.bytes) / conditions_.h2d_bytes_per_s;
    state.on_device = to_device_free_;
    memory_.push_back({now_, group.bytes, &group.module});
    traffic_[group.module].h2d_bytes += group.bytes;
  }

  void prefetch(PassState& pass) {
    if (reload_newest(pass) || pass.position + 1 == passes_.size()) return;
    PassState& next = passes_[pass.position + 1];
    if (next.forward_done) reload_newest(next);
  }

  bool reload_newest(PassState& pass) {
    if (pass.away.empty()) return false;
    reload(pass.groups[pass.away.back()]);
    pass.away.pop_back();
    return true;
  }

  double wait_until(double time, const std::string& module) {
    const double waited = std::max(0.0, time - now_);
    now_ += waited;
    traffic_[module].exposed_s += waited;
    return waited;
  }

  const OffloadConditions& conditions_;
  bool moves_;
  std::vector<PassState> passes_;
  std::map<PassId, size_t> position_of_;
  double now_ = 0;  // of the compute stream
  double to_host_free_ = 0, to_device_free_ = 0;
  double exposed_d2h_ = 0, exposed_h2d_ = 0;
  std::vector<MemoryEvent> memory_;
  TrafficByModule traffic_;
};

// The module's last group in the pass at `position`, before which no pass has the module that is
// still to come back.
bool comes_back_at_once(std::span<const PassGroups> passes, size_t next_position, size_t position,
                        size_t group_idx) {
  const std::vector<OffloadGroup>& groups = passes[position].groups;
  const auto same = [&](const OffloadGroup& other) {
    return other.module == groups[group_idx].module;
  };
  const auto later = groups.begin() + static_cast<std::ptrdiff_t>(group_idx) + 1;
  if (std::any_of(later, groups.end(), same)) return false;
  return std::none_of(passes.begin() + static_cast<std::ptrdiff_t>(next_position),
                      passes.begin() + static_cast<std::ptrdiff_t>(position),
                      [&](const PassGroups& pass) {
                        return std::any_of(pass.groups.begin(), pass.groups.end(), same);
                      });
}

}  // namespace

std::vector<PassGroups> moving_groups(std::span<const PassAction> actions,
                                      std::span<const PassGroups> passes) {
  std::map<PassId, size_t> position_of;
  for (size_t i = 0; i < passes.size(); ++i) position_of[passes[i].pass] = i;
  std::vector<PassGroups> moving(passes.begin(), passes.end());
  size_t next_position = 0;  // of the next backward pass to begin
  for (const PassAction& action : actions) {
    const auto found = position_of.find(action.pass);
    CHECK(found != position_of.end(), "pass (", action.pass.chunk, ", ", action.pass.micro,
          ") has no groups");
    const size_t position = found->second;
    if (!action.forward) {
      next_position = std::max(next_position, position + 1);
      continue;
    }
    CHECK(position >= next_position, "pass (", action.pass.chunk, ", ", action.pass.micro,
          ") goes forward after it came back");
    for (size_t i = 0; i < moving[position].groups.size(); ++i)
      if (comes_back_at_once(passes, next_position, position, i))
        moving[position].groups[i].offload = false;
  }
  return moving;
}

int64_t OffloadForecast::d2h_bytes() const {
  int64_t bytes = 0;
  for (const auto& [module, moved] : traffic) bytes += moved.d2h_bytes;
  return bytes;
}

int64_t OffloadForecast::h2d_bytes() const {
  int64_t bytes = 0;
  for (const auto& [module, moved] : traffic) bytes += moved.h2d_bytes;
  return bytes;
}

OffloadForecast simulate_offload(std::span<const PassAction> actions,
                                 std::span<const PassGroups> passes,
                                 const OffloadConditions& conditions) {
  const bool moves = std::any_of(passes.begin(), passes.end(), [](const PassGroups& pass) {
    return std::any_of(pass.groups.begin(), pass.groups.end(),
                       [](const OffloadGroup& group) { return group.offload && group.bytes > 0; });
  });
  CHECK(!moves || (conditions.d2h_bytes_per_s > 0 && conditions.h2d_bytes_per_s > 0),
        "groups move at ", conditions.d2h_bytes_per_s, " and ", conditions.h2d_bytes_per_s,
        " bytes/s");
  const std::vector<PassGroups> moving = moving_groups(actions, passes);
  OffloadForecast forecast;
  Simulator without(moving, conditions, false);
  without.run(actions);
  forecast.step_without_s = without.now();
  forecast.peak_without_bytes = without.peak().first;
  Simulator with(moving, conditions, true);
  with.run(actions);
  forecast.step_s = with.now();
  forecast.exposed_d2h_s = with.exposed_d2h();
  forecast.exposed_h2d_s = with.exposed_h2d();
  std::tie(forecast.peak_bytes, forecast.peak_by_module) = with.peak();
  forecast.traffic = with.traffic();
  return forecast;
}

}  // namespace ferry
