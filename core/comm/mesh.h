#pragma once

// The axes of a job. One world of ranks is cut in two grids that share their pipeline axis:
//   attention: tp (fastest), cp, dp, pp          experts: etp (fastest), ep, edp, pp
// Say axis for the mesh and dim for tensors.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/group.h"

namespace ferry {

struct MeshSizes {
  int tensor = 1;
  int context = 1;
  int pipeline = 1;
  int expert = 1;
  int expert_tensor = 1;
};

/// The coordinates of one rank.
struct MeshCoordinates {
  int tp = 0, cp = 0, dp = 0, pp = 0;
  int etp = 0, ep = 0, edp = 0;
};

class Mesh {
 public:
  /// Pure arithmetic. Errors (ExitCode::Usage) list every size that does not divide, with the
  /// nearest legal values, and a grid whose pipeline groups differ.
  Mesh(int world, const MeshSizes& sizes);

  int world() const { return world_; }
  int dp() const { return dp_; }
  int edp() const { return edp_; }
  const MeshSizes& sizes() const { return sizes_; }
  MeshCoordinates at(int rank) const;
  /// The ranks that differ from `rank` only along `axis`, ascending: "tp", "cp", "dp", "pp", "etp",
  /// "ep", "edp", or along several:
  ///   "stage"     tp, cp and dp: all ranks of a pipeline stage
  ///   "exchange"  etp and ep: the ranks that exchange the tokens of a MoE layer
  ///   "tied"      dp, of the first and the last pipeline stage; the rank alone in any other
  std::vector<int> ranks_along(const std::string& axis, int rank) const;
  /// One line per rank: what grid.txt holds.
  std::string table() const;

 private:
  int world_;
  MeshSizes sizes_;
  int dp_ = 1;
  int edp_ = 1;
};

/// The groups of this rank along the axes that a job communicates on ("tp", "pp", "exchange", and
/// those that reduce gradients: "dp", "stage", "tied", "edp"), made from the world group by split.
/// Axes that reduce gradients over the same ranks share a group. Every rank must call it.
class MeshGroups {
 public:
  MeshGroups(const Mesh& mesh, Group& world);
  Group& along(const std::string& axis) const;
  const Mesh& mesh() const { return mesh_; }
  /// Of this rank.
  int rank() const { return rank_; }
  MeshCoordinates coordinates() const { return mesh_.at(rank_); }
  Group& world() const { return world_; }

 private:
  Mesh mesh_;
  int rank_;
  Group& world_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
};

}  // namespace ferry
