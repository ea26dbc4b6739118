#pragma once

// How several data sets are mixed: Megatron-LM's greedy blending, bit for bit.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ferry {

/// What `data.train` and `data.valid` name: paths, with a weight each or without weights.
struct BlendSpec {
  std::vector<std::string> paths;
  std::vector<double> weights;  // empty, or one per path, summing to 1
};

/// A list of even length whose every other element is a number is weight, path, weight, path, ...;
/// any other list is paths. Throws Error(Usage) for weights that are not positive.
BlendSpec parse_blend(std::span<const std::string> entries);

/// Samples that each part contributes to `num_samples` of the blend: ceil(num_samples * weight).
std::vector<int64_t> blend_sizes(std::span<const double> weights, int64_t num_samples);

/// Samples that a part that contributes `size` is built with: 0.5 % more, because the greedy order
/// can draw a little more from it.
int64_t blend_build_size(int64_t size);

/// Sample n of the blend is sample `sample[n]` of part `part[n]`.
struct BlendOrder {
  std::vector<int16_t> part;
  std::vector<int64_t> sample;
  int64_t size() const { return static_cast<int64_t>(part.size()); }
};

/// Each sample comes from the part that lags most behind its weight; ties go to the lower part.
BlendOrder make_blend_order(std::span<const double> weights, int64_t num_samples);

/// As above with weights in proportion to the sizes, until every part has given all its samples.
BlendOrder make_exhaustive_blend_order(std::span<const int64_t> sizes);

}  // namespace ferry
