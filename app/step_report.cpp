#include "app/step_report.h"

#include <algorithm>

#include "core/check.h"

namespace ferry {

void set_expert_tokens(StepReport& report, std::span<const double> counts, int64_t experts) {
  report.expert_tokens.clear();
  report.balance = 0;
  report.dead_experts = 0;
  if (counts.empty()) return;
  CHECK(experts > 0 && static_cast<int64_t>(counts.size()) % experts == 0, counts.size(),
        " counts for layers of ", experts, " experts");
  const auto width = static_cast<size_t>(experts);
  for (size_t at = 0; at < counts.size(); at += width) {
    const auto layer = counts.subspan(at, width);
    report.expert_tokens.emplace_back(layer.begin(), layer.end());
    double sum = 0;
    for (const double count : layer) {
      sum += count;
      report.dead_experts += count == 0;
    }
    const double busiest = *std::max_element(layer.begin(), layer.end());
    if (sum > 0)
      report.balance = std::max(report.balance, busiest * static_cast<double>(experts) / sum);
  }
}

}  // namespace ferry
