#pragma once

// The rows of each parameter that a rank owns: those that it counts in the norm of the gradients
// and, with the distributed optimizer, updates and keeps state for (ZeRO stage 1, S. Rajbhandari et
// al., 2020). The ranks of a parameter's group own all its rows, each row once.

#include <memory>
#include <vector>

#include "core/parameter.h"
#include "optim/reduce_groups.h"

namespace ferry {

using RowRange = Placement::Range;

/// How many rows a rank owns, but the last ones, which may own fewer or none: rows / size, rounded
/// up. Rows as in core/placement.h.
int64_t rows_per_rank(const Parameter& parameter, int size);
RowRange owned_rows(const Parameter& parameter, int rank, int size);

/// For each parameter (which has memory) one that describes the rows that this rank owns: shape
/// [rows, columns], or [rows] of one dim; value and grad are views of those rows; part is set. Rows
/// may be 0. Everything else is as in the parameter, so an optimizer or a checkpoint that is given
/// shards needs to know nothing of them.
std::vector<std::unique_ptr<Parameter>> make_shards(const std::vector<Parameter*>& parameters,
                                                    const ReduceGroups& groups);

/// The same as plain pointers, which do not own.
std::vector<Parameter*> pointers(const std::vector<std::unique_ptr<Parameter>>& shards);

}  // namespace ferry
