#include "app/row_counts.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "core/check.h"

namespace ferry {
namespace {

constexpr int64_t kEdgeCounts[] = {0, 1, 63, 64, 65, 127, 129};
constexpr int64_t kNumEdges = std::size(kEdgeCounts);
// Of this many experts, seven have a count of the edge.
constexpr int64_t kExpertsPerEdgeSet = 16;

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// `rows` in proportion to the weights, none above `most`; what rounding and `most` leave over goes
// round the experts that have a weight.
std::vector<int64_t> in_proportion(const std::vector<double>& weights, int64_t rows, int64_t most) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> counts;
  for (const double weight : weights)
    counts.push_back(
        std::min(most, static_cast<int64_t>(static_cast<double>(rows) * weight / all)));
  int64_t left = rows - sum(counts);
  while (left > 0) {
    const int64_t before = left;
    for (size_t e = 0; e < counts.size() && left > 0; ++e) {
      if (weights[e] == 0 || counts[e] == most) continue;
      ++counts[e];
      --left;
    }
    CHECK(left < before, left, " rows have no place in ", counts.size(), " experts of ", most);
  }
  return counts;
}

std::vector<int64_t> uneven(int64_t experts, int64_t mean, std::mt19937_64& generator) {
  std::uniform_real_distribution<double> uniform(0.05, 2);
  std::vector<double> weights;
  for (int64_t e = 1; e < experts; ++e) weights.push_back(uniform(generator));
  std::vector<int64_t> counts = in_proportion(weights, (experts - 2) * mean, 2 * mean);
  counts.push_back(2 * mean);
  std::shuffle(counts.begin(), counts.end(), generator);
  return counts;
}

std::vector<int64_t> power_law(int64_t experts, int64_t mean, std::mt19937_64& generator) {
  std::vector<double> weights;
  for (int64_t rank = 1; rank <= experts; ++rank)
    weights.push_back(1.0 / static_cast<double>(rank));
  std::shuffle(weights.begin(), weights.end(), generator);
  return in_proportion(weights, experts * mean, experts * mean);
}

std::vector<int64_t> one_expert(int64_t experts, int64_t mean, std::mt19937_64& generator) {
  std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
  counts[generator() % counts.size()] = experts * mean;
  return counts;
}

std::vector<int64_t> edges(int64_t experts, int64_t mean, std::mt19937_64& generator) {
  const int64_t sets = std::max<int64_t>(1, experts / kExpertsPerEdgeSet);
  const int64_t num_small = std::min(experts - 1, sets * kNumEdges);
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < num_small; ++i) counts.push_back(kEdgeCounts[i % kNumEdges]);
  const int64_t rest = experts * mean - sum(counts);
  if (rest < 0)
    fail(ExitCode::Usage, "error: --edge needs ", sum(counts), " rows for ", experts,
         " experts; there are ", experts * mean,
         "\n  why : experts with 0, 1, 63, 64, 65, 127 and 129 rows are mixed with larger ones\n"
         "  try : --rows-per-expert ",
         (sum(counts) + experts - 1) / experts, " or more");
  const std::vector<double> equal(static_cast<size_t>(experts - num_small), 1.0);
  for (const int64_t count : in_proportion(equal, rest, rest)) counts.push_back(count);
  std::shuffle(counts.begin(), counts.end(), generator);
  return counts;
}

}  // namespace

double RowCounts::max_over_mean() const {
  const auto mean = static_cast<double>(sum(counts)) / static_cast<double>(counts.size());
  return static_cast<double>(*std::max_element(counts.begin(), counts.end())) / mean;
}

std::vector<RowCounts> distribute_rows(int64_t experts, int64_t rows_per_expert, uint64_t seed,
                                       bool edge) {
  CHECK(experts > 0 && rows_per_expert > 0, rows_per_expert, " rows for each of ", experts,
        " experts");
  const int64_t mean = rows_per_expert;
  std::vector<RowCounts> all{{"even", std::vector<int64_t>(static_cast<size_t>(experts), mean)}};
  if (experts == 1) return all;
  std::mt19937_64 generator(seed);
  all.push_back({"uneven", uneven(experts, mean, generator)});
  all.push_back({"power law", power_law(experts, mean, generator)});
  all.push_back({"one expert", one_expert(experts, mean, generator)});
  if (edge) all.push_back({"edge", edges(experts, mean, generator)});
  return all;
}

}  // namespace ferry
