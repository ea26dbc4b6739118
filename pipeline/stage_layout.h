#pragma once

// Which layers each stage of a pipeline holds: equal parts, or what a layout string says.
//
// A layout: E is the embedding, t one layer, L the output layer and loss; "|" separates stages,
// which may be empty; x*n repeats one character and (...)*n a group, which may hold "|" but no
// other group; commas and spaces mean nothing. "Et*3|(tt|)*2t*3L" has four stages.
//
// Stage i belongs to pipeline rank i mod (number of ranks) and is its chunk i div (number of
// ranks), as in Narayanan et al., "Efficient large-scale language model training on GPU clusters"
// (2021).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ferry {

/// A run of consecutive layers, with what stands before and behind all of them.
struct StageLayers {
  bool embedding = false;
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool head = false;
  bool operator==(const StageLayers&) const = default;
};

/// What is wrong with a layout string, for a message: "the layout <what>: <why>; try <fix>".
struct LayoutProblem {
  std::string what, why, fix;
  bool about_layers = false;  // the number of layers may be what is wrong
};

/// The layout with every repetition written out and nothing but E, t, L and | in it; nothing if it
/// cannot be read.
std::optional<std::string> unroll_layout(const std::string& layout);
/// Everything that is wrong with a layout for a model of `num_layers` layers; empty if it is legal.
std::vector<LayoutProblem> layout_problems(const std::string& layout, int64_t num_layers);
/// The number of stages; nothing if the layout cannot be read.
std::optional<int64_t> num_layout_stages(const std::string& layout);

/// Stages in the order of the model. Error(ExitCode::Usage) with the first of layout_problems().
std::vector<StageLayers> parse_layout(const std::string& layout, int64_t num_layers);
/// Stages of equally many layers. `num_stages` must divide `num_layers`.
std::vector<StageLayers> even_stages(int64_t num_layers, int64_t num_stages);
/// The chunks of one pipeline rank, in order. `num_ranks` must divide the number of stages.
std::vector<StageLayers> stages_of_rank(std::span<const StageLayers> stages, int rank,
                                        int num_ranks);
/// The shortest usual layout string: "Et*3|tt|L" is "Et*3|t*2|L".
std::string layout_text(std::span<const StageLayers> stages);
/// Error(ExitCode::Internal) unless the stages hold every layer exactly once and in order, the
/// embedding in the first stage only and the head in the last only. Both functions that make stages
/// have called it.
void check_stages(std::span<const StageLayers> stages, int64_t num_layers);

}  // namespace ferry
