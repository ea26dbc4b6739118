#pragma once

// Tensor parallelism (Shoeybi et al., "Megatron-LM", 2019) with sequence parallelism (Korthikanti
// et al., "Reducing activation recomputation in large transformer models", 2022), for layers.
//
// A tensor-parallel region is a pair of matrix products: the first one cut by rows of its weight
// (output channels), the second by columns, so that nothing crosses between the ranks within it.
// T tokens enter on every rank, and every rank leaves with a partial sum of the output.
//
//                              without sequence parallelism    with it
//   between regions a rank has all T rows                      its T/size rows, in rank order
//   enter:  rows -> T rows     nothing                         all-gather
//   leave:  partial [T] -> rows  all-reduce                    reduce-scatter
//
// The backward of enter is leave, the backward of leave is enter. With one rank both are nothing.

#include "core/comm/group.h"
#include "core/parameter.h"

namespace ferry {

struct TensorParallel {
  Group* group = nullptr;  // null with one rank, and in a model that is described but not run
  int rank = 0;
  int size = 1;
  bool sequence = false;

  /// All T rows of x, of which every rank has its own (sequence) or all already.
  Tensor enter(Stream& stream, const Tensor& x) const;
  /// The sum over the ranks of `partial` [T, ...]: this rank's rows of it (sequence), or all.
  /// Overwrites `partial`, and may return it.
  Tensor leave(Stream& stream, const Tensor& partial) const;
  /// Rows between regions, of `num_tokens` tokens; and the index of the first of them.
  int64_t num_rows(int64_t num_tokens) const;
  int64_t first_row(int64_t num_rows) const { return sequence ? rank * num_rows : 0; }
  /// This rank's rows of all rows of x, which every rank has: a view.
  Tensor own_rows(const Tensor& x) const;

  /// What a parameter needs that every rank holds whole, used between regions: with sequence
  /// parallelism each rank's gradient is a part; without, all have the same.
  void replicate(Parameter& parameter) const;
  /// The same for a parameter used inside of a region, where each rank has a part of its gradient.
  void replicate_inside(Parameter& parameter) const;
};

/// The rows of a vocabulary that rank `rank` of `size` holds: equally many on each rank, of which
/// the last ones may be padding.
struct VocabularyPart {
  int64_t first = 0;
  int64_t rows = 0;       // with padding
  int64_t real_rows = 0;  // without
};
VocabularyPart vocabulary_part(int64_t vocab, int rank, int size);
/// Cuts a weight [vocab, width] to that part.
void cut_vocabulary(Parameter& weight, int rank, int size);

}  // namespace ferry
