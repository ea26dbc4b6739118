#pragma once

// How the rows of a benchmark are distributed over the experts. All distributions of one case have
// the same number of rows, so that their products are equally many operations.

#include <cstdint>
#include <string>
#include <vector>

namespace ferry {

struct RowCounts {
  std::string distribution;     // "even", "uneven", ...
  std::vector<int64_t> counts;  // rows of each expert; 0 is legal

  /// Rows of the largest expert over those of the average one.
  double max_over_mean() const;
};

/// `experts` * `rows_per_expert` rows, distributed
///   even             equally;
///   uneven           at random, the largest expert with twice the mean;
///   power law        by 1 / rank, the ranks shuffled;
///   one expert       all to one;
///   edge             (with `edge`) 0, 1, 63, 64, 65, 127 and 129 rows, where kernels' tiles end,
///   mixed
///                    with experts that share the rest.
/// One expert has only the even distribution. Error(ExitCode::Usage) if the rows of `edge` are more
/// than there are.
std::vector<RowCounts> distribute_rows(int64_t experts, int64_t rows_per_expert, uint64_t seed,
                                       bool edge);

}  // namespace ferry
