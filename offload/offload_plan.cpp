#include "offload/offload_plan.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "core/check.h"

namespace ferry {
namespace {

int margin_of(const std::vector<PassGroups>& passes) {
  size_t margin = 0;
  for (const PassGroups& pass : passes) {
    std::set<std::string> modules;
    for (const OffloadGroup& group : pass.groups) modules.insert(group.module);
    margin = std::max(margin, modules.size());
  }
  return static_cast<int>(margin);
}

// The last group of each module in the pass that comes back first and has that module; modules in
// the order in which this walk sees them.
void keep_last(std::vector<PassGroups>& passes, int margin) {
  std::vector<std::pair<std::string, OffloadGroup*>> last;
  for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) {
    for (OffloadGroup& group : pass->groups) {
      const auto known = std::find_if(
          last.begin(), last.end(), [&](const auto& entry) { return entry.first == group.module; });
      if (known == last.end())
        last.emplace_back(group.module, &group);
      else
        known->second = &group;
    }
  }
  CHECK(static_cast<int>(last.size()) >= margin, "fewer modules than one pass has");
  for (int i = 0; i < margin; ++i) last[static_cast<size_t>(i)].second->offload = false;
}

void keep_delta(std::vector<PassGroups>& passes, int64_t budget) {
  for (PassGroups& pass : passes) {
    for (OffloadGroup& group : pass.groups) {
      if (budget <= 0) return;
      if (!group.offload) continue;
      group.offload = false;
      budget -= group.bytes;
    }
  }
}

void keep_fraction(PassGroups& pass, double fraction) {
  const auto moves = [](const OffloadGroup& group) { return group.offload && group.bytes > 0; };
  const auto count = std::count_if(pass.groups.begin(), pass.groups.end(), moves);
  // Truncated in double precision: 10 groups at 0.9 lose none, because 1 - 0.9 is below 0.1.
  auto kept = static_cast<int64_t>(static_cast<double>(count) * (1.0 - fraction));
  for (auto group = pass.groups.rbegin(); group != pass.groups.rend() && kept > 0; ++group) {
    if (!moves(*group)) continue;
    group->offload = false;
    --kept;
  }
}

std::string cell(const char* format, int width, double megabytes) {
  char text[64];
  std::snprintf(text, sizeof(text), format, width, megabytes);
  return text;
}

std::string padded(const std::string& text, size_t width, bool left) {
  const std::string space(width > text.size() ? width - text.size() : 0, ' ');
  return left ? text + space : space + text;
}

}  // namespace

int plan_offload(std::vector<PassGroups>& passes, const OffloadRules& rules) {
  for (PassGroups& pass : passes)
    for (OffloadGroup& group : pass.groups) group.offload = true;
  const int margin = margin_of(passes);
  keep_last(passes, margin);
  keep_delta(passes, rules.pipeline_rank * rules.delta_bytes);
  for (PassGroups& pass : passes) keep_fraction(pass, rules.fraction);
  return margin;
}

std::map<std::string, int64_t> resident_bytes(std::span<const PassAction> actions,
                                              const std::vector<PassGroups>& passes) {
  std::map<std::string, int64_t> bytes;
  for (const PassAction& action : actions) {
    if (!action.forward) continue;
    const auto pass = std::find_if(passes.begin(), passes.end(), [&](const PassGroups& candidate) {
      return candidate.pass == action.pass;
    });
    CHECK(pass != passes.end(), "a pass of the schedule has no plan");
    for (const OffloadGroup& group : pass->groups)
      if (group.offload && group.bytes > 0) bytes[group.module] += group.bytes;
    if (pass == passes.begin()) break;
  }
  return bytes;
}

std::string offload_summary(const std::vector<std::map<std::string, int64_t>>& ranks) {
  std::set<std::string> modules;
  for (const auto& rank : ranks)
    for (const auto& [module, bytes] : rank) modules.insert(module);
  size_t width = 12;
  for (const std::string& module : modules) width = std::max(width, module.size() + 2);
  const std::string last = "Rank " + std::to_string(ranks.empty() ? 0 : ranks.size() - 1);
  const size_t first_width = std::max<size_t>(6, last.size() + 2);

  std::string text = "Activation Offload Summary (MB)\n" + padded("Rank", first_width, true);
  for (const std::string& module : modules) text += padded(module, width, false);
  text += padded("Total", width, false) + "\n";
  std::map<std::string, int64_t> sums;
  const auto row = [&](const std::string& label, const std::map<std::string, int64_t>& bytes) {
    std::string line = padded(label, first_width, true);
    int64_t total = 0;
    for (const std::string& module : modules) {
      const auto found = bytes.find(module);
      const int64_t own = found == bytes.end() ? 0 : found->second;
      line += cell("%*.2f", static_cast<int>(width), static_cast<double>(own) / (1 << 20));
      total += own;
    }
    return line + cell("%*.2f", static_cast<int>(width), static_cast<double>(total) / (1 << 20)) +
           "\n";
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += row("Rank " + std::to_string(i), ranks[i]);
    for (const auto& [module, bytes] : ranks[i]) sums[module] += bytes;
  }
  return text + row("Total", sums);
}

std::vector<PassId> backward_order(std::span<const PassAction> actions) {
  std::vector<PassId> order;
  for (const PassAction& action : actions)
    if (!action.forward) order.push_back(action.pass);
  return order;
}

}  // namespace ferry
