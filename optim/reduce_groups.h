#pragma once

// The group of ranks that holds copies of a parameter, for each ReduceAxis.

#include "core/check.h"
#include "core/comm/group.h"
#include "core/comm/mesh.h"
#include "core/parameter.h"

namespace ferry {

/// Groups may be the same object; all outlive what is given this.
struct ReduceGroups {
  Group* dense = nullptr;
  Group* stage = nullptr;
  Group* tied = nullptr;
  Group* expert = nullptr;

  Group& of(ReduceAxis axis) const {
    Group* const groups[] = {dense, stage, tied, expert};
    Group* const group = groups[static_cast<size_t>(axis)];
    CHECK(group != nullptr, "no group for axis ", static_cast<int>(axis));
    return *group;
  }
};

inline ReduceGroups reduce_groups(const MeshGroups& groups) {
  return {&groups.along("dp"), &groups.along("stage"), &groups.along("tied"), &groups.along("edp")};
}

/// In the order of the enumeration.
inline constexpr ReduceAxis kReduceAxes[] = {ReduceAxis::Dense, ReduceAxis::Stage, ReduceAxis::Tied,
                                             ReduceAxis::Expert};

}  // namespace ferry
