#pragma once

// What differs between the training states of two checkpoints, however ranks cut them.

#include <string>
#include <vector>

#include "checkpoint/reader.h"

namespace ferry {

/// A tensor that is not the same bits in both. Differences are |a - b|, relative ones are divided
/// by max(|a|, |b|); where that is no number (NaN, infinity) both count as infinite.
struct TensorDifference {
  std::string name;
  std::string mismatch;  // "only in the first", "f32 [4] and f64 [4]", ...; else empty, and:
  int64_t num_elements = 0;
  int64_t num_different = 0;  // elements whose bits differ: -0 and 0 do, by 0
  double largest_absolute = 0;
  double largest_relative = 0;
  std::vector<int64_t> first;  // indices of the first element that differs
  double first_a = 0, first_b = 0;
};

/// A scalar that differs, as text; empty where it is absent.
struct ScalarDifference {
  std::string name;
  std::string a, b;
};

struct CheckpointDifference {
  std::vector<TensorDifference> tensors;  // sorted by name
  std::vector<ScalarDifference> scalars;  // sorted by name
  int64_t num_tensors = 0;                // names in either
  int64_t num_scalars = 0;
  bool empty() const { return tensors.empty() && scalars.empty(); }
};

/// Verifies both, then reads what differs, at most `block_elements` of a tensor at a time. The
/// configuration, the layout of ranks and the time of writing are not compared: the result is empty
/// exactly where `ferry ckpt hash` prints the same. Error(ExitCode::Storage) if one is damaged.
CheckpointDifference diff_checkpoints(const Checkpoint& a, const Checkpoint& b,
                                      int64_t block_elements = int64_t{1} << 24);

}  // namespace ferry
