#pragma once

// Expert parallelism: the experts of a layer are dealt out to ep ranks, in order and equally many
// each, and the matrices of one expert are cut over etp ranks (expert tensor parallelism). The
// ranks of both axes exchange tokens; each of them brings its own. Rank of the exchange group:
// etp_rank + etp_size * ep_rank.

#include <cmath>
#include <optional>

#include "core/comm/group.h"

namespace ferry {

/// moe.rank_capacity_factor: the rows of a rank's experts have a fixed size in training, so that
/// nobody has to know how many come. Beyond it they are left out, and step total "over_capacity"
/// [1] I32 is above 0: the step is not what was asked for, and is run again without a limit.
struct RankCapacity {
  double factor = 1.0;  // over the balanced number of rows
  bool enabled = true;  // false while a step is run again; never changed within a step

  /// Rows of the grouped product's tile on a GPU.
  static constexpr int64_t kAlignment = 128;
  /// `num_balanced` times the factor, rounded up to kAlignment.
  int64_t num_rows(int64_t num_balanced) const {
    const auto rows = static_cast<int64_t>(std::ceil(static_cast<double>(num_balanced) * factor));
    return (rows + kAlignment - 1) / kAlignment * kAlignment;
  }
};

struct ExpertParallel {
  Group* exchange = nullptr;  // null with one rank, and in a model that is described but not run
  int ep_rank = 0;
  int ep_size = 1;
  int etp_rank = 0;
  int etp_size = 1;
  /// Exchanges that run beside the stream of the pass are enqueued here: what the host has to know,
  /// so that waiting for other ranks' counts does not hold up this rank's work, and gradients that
  /// are not needed at once. One stream serves all layers. Null: on the stream of the pass.
  Stream* side = nullptr;
  /// Owned by whoever makes the model, and read in every pass. Null: as many rows as come. One rank
  /// alone always has exactly as many rows as its tokens have choices.
  const RankCapacity* capacity = nullptr;

  int size() const { return ep_size * etp_size; }
  int64_t num_local(int64_t experts) const { return experts / ep_size; }
  int64_t first_local(int64_t experts) const { return ep_rank * num_local(experts); }
  /// Rows of this rank in training, if they are limited; its own tokens have `num_choices`, and
  /// every row goes to all etp ranks.
  std::optional<int64_t> row_limit(int64_t num_choices) const {
    if (capacity == nullptr || !capacity->enabled) return std::nullopt;
    return capacity->num_rows(num_choices * etp_size);
  }
};

}  // namespace ferry
