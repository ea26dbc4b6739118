#include "app/data/blend_order.h"

#include "core/check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>

namespace ferry {
namespace {

std::optional<double> parse_number(const std::string& text) {
  char* rest = nullptr;
  const double value = std::strtod(text.c_str(), &rest);
  if (text.empty() || *rest != '\0') return std::nullopt;
  return value;
}

// The order of operations is part of the format: the sums are compared in double.
class GreedyBlend {
 public:
  explicit GreedyBlend(std::span<const double> weights)
      : weights_(weights), counts_(weights.size(), 0) {
    CHECK(!weights.empty() &&
              weights.size() <= static_cast<size_t>(std::numeric_limits<int16_t>::max()),
          weights.size(), " parts in a blend");
  }

  // Appends one sample of a part with counts_ < limits (all parts, if there are no limits).
  void draw(std::span<const int64_t> limits, BlendOrder& order) {
    const double drawn = std::max(static_cast<double>(order.size()), 1.0);
    double largest = std::numeric_limits<double>::lowest();
    size_t chosen = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (!limits.empty() && counts_[i] == limits[i]) continue;
      const double lag = weights_[i] * drawn - static_cast<double>(counts_[i]);
      if (lag > largest) {
        largest = lag;
        chosen = i;
      }
    }
    order.part.push_back(static_cast<int16_t>(chosen));
    order.sample.push_back(counts_[chosen]++);
  }

 private:
  std::span<const double> weights_;
  std::vector<int64_t> counts_;
};

}  // namespace

BlendSpec parse_blend(std::span<const std::string> entries) {
  BlendSpec spec;
  bool weighted = !entries.empty() && entries.size() % 2 == 0;
  for (size_t i = 0; weighted && i < entries.size(); i += 2) {
    weighted = parse_number(entries[i]).has_value();
  }
  if (!weighted) {
    spec.paths.assign(entries.begin(), entries.end());
    return spec;
  }
  for (size_t i = 0; i < entries.size(); i += 2) {
    const double weight = *parse_number(entries[i]);
    if (!(weight > 0) || !std::isfinite(weight)) {
      fail(ExitCode::Usage, "the weight ", entries[i], " of ", entries[i + 1],
           " in the list of data files must be a positive number; leave out files with weight 0");
    }
    spec.weights.push_back(weight);
    spec.paths.push_back(entries[i + 1]);
  }
  const double sum = std::accumulate(spec.weights.begin(), spec.weights.end(), 0.0);
  for (double& weight : spec.weights) weight /= sum;
  return spec;
}

std::vector<int64_t> blend_sizes(std::span<const double> weights, int64_t num_samples) {
  std::vector<int64_t> sizes;
  for (const double weight : weights) {
    sizes.push_back(static_cast<int64_t>(std::ceil(static_cast<double>(num_samples) * weight)));
  }
  return sizes;
}

int64_t blend_build_size(int64_t size) {
  constexpr double kSurplus = 0.005;
  return static_cast<int64_t>(std::ceil(static_cast<double>(size) * (1 + kSurplus)));
}

BlendOrder make_blend_order(std::span<const double> weights, int64_t num_samples) {
  GreedyBlend blend(weights);
  BlendOrder order;
  while (order.size() < num_samples) blend.draw({}, order);
  return order;
}

BlendOrder make_exhaustive_blend_order(std::span<const int64_t> sizes) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> weights;
  for (const int64_t size : sizes) {
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  }
  GreedyBlend blend(weights);
  BlendOrder order;
  while (order.size() < total) blend.draw(sizes, order);
  return order;
}

}  // namespace ferry
