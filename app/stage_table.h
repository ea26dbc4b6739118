#pragma once

// A table of a plan with a column per pipeline stage.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "app/plan.h"

namespace ferry {

/// Rows of bytes, in GiB; rows that are 0 everywhere are left out. Of more than eight stages, whose
/// numbers do not fit into a line, it is the one that needs most memory.
class StageTable {
 public:
  explicit StageTable(const Plan& plan) : stages_(shown_stages(plan)) {
    if (plan.memory.size() == 1) return;
    text_ = fmt::format("  {:<16}", "pipeline rank");
    for (const size_t stage : stages_) text_ += fmt::format("{:>14}", stage);
    text_ += '\n';
  }
  /// `bytes_of(stage)`: int64_t.
  template <class BytesOf>
  void row(const std::string& name, BytesOf&& bytes_of) {
    const auto is_zero = [&](size_t stage) { return bytes_of(stage) == 0; };
    if (std::all_of(stages_.begin(), stages_.end(), is_zero)) return;
    text_ += fmt::format("  {:<16}", name);
    for (const size_t stage : stages_)
      text_ += fmt::format("{:>14.3f}", static_cast<double>(bytes_of(stage)) / (1 << 30));
    text_ += '\n';
  }
  const std::string& text() const { return text_; }

 private:
  static std::vector<size_t> shown_stages(const Plan& plan) {
    std::vector<size_t> all(plan.memory.size());
    std::iota(all.begin(), all.end(), size_t{0});
    if (all.size() <= 8) return all;
    return {*std::max_element(all.begin(), all.end(), [&](size_t a, size_t b) {
      return plan.memory[a].total() < plan.memory[b].total();
    })};
  }

  std::vector<size_t> stages_;
  std::string text_;
};

}  // namespace ferry
