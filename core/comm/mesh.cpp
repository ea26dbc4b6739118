#include "core/comm/mesh.h"

#include <algorithm>

#include "core/check.h"

namespace ferry {
namespace {

// The divisors of `world` nearest to `wanted`, for messages.
std::string nearest_divisors(int world, int64_t wanted) {
  int below = 0, above = 0;
  for (int d = 1; d <= world; ++d) {
    if (world % d != 0) continue;
    if (d <= wanted) below = d;
    if (d >= wanted && above == 0) above = d;
  }
  if (above == 0 || above == below) return std::to_string(below);
  return below == 0 ? std::to_string(above) : concat(below, " or ", above);
}

void require_divides(std::string& problems, const char* grid, const char* formula, int64_t product,
                     int world) {
  if (world % product == 0) return;
  problems += concat("\n  ", grid, ": ", formula, " = ", product, " does not divide ", world,
                     " ranks; nearest that do: ", nearest_divisors(world, product));
}

}  // namespace

Mesh::Mesh(int world, const MeshSizes& sizes) : world_(world), sizes_(sizes) {
  CHECK(world >= 1, "a mesh of ", world, " ranks");
  std::string problems;
  const std::pair<const char*, int> named[] = {{"tensor", sizes.tensor},
                                               {"context", sizes.context},
                                               {"pipeline", sizes.pipeline},
                                               {"expert", sizes.expert},
                                               {"expert_tensor", sizes.expert_tensor}};
  for (const auto& [name, size] : named)
    if (size < 1) problems += concat("\n  parallel.", name, " = ", size, ": at least 1 is needed");
  if (problems.empty()) {
    const int64_t attention = int64_t{sizes.tensor} * sizes.context * sizes.pipeline;
    const int64_t experts = int64_t{sizes.expert_tensor} * sizes.expert * sizes.pipeline;
    require_divides(problems, "attention grid", "tensor * context * pipeline", attention, world);
    require_divides(problems, "expert grid", "expert_tensor * expert * pipeline", experts, world);
    dp_ = static_cast<int>(world / attention);
    edp_ = static_cast<int>(world / experts);
  }
  if (!problems.empty())
    fail(ExitCode::Usage, "error: ", world, " ranks cannot be arranged", problems);
  for (int rank = 0; rank < world; ++rank) {
    const int stage_ranks = world / sizes.pipeline;
    CHECK(at(rank).pp == rank / stage_ranks, "the two grids share their pipeline groups");
  }
}

MeshCoordinates Mesh::at(int rank) const {
  CHECK(rank >= 0 && rank < world_, "rank ", rank, " of ", world_);
  MeshCoordinates c;
  int rest = rank;
  const auto take = [&](int size) {
    const int coordinate = rest % size;
    rest /= size;
    return coordinate;
  };
  c.tp = take(sizes_.tensor);
  c.cp = take(sizes_.context);
  c.dp = take(dp_);
  c.pp = take(sizes_.pipeline);
  rest = rank;
  c.etp = take(sizes_.expert_tensor);
  c.ep = take(sizes_.expert);
  c.edp = take(edp_);
  return c;
}

std::vector<int> Mesh::ranks_along(const std::string& axis, int rank) const {
  CHECK(rank >= 0 && rank < world_, "rank ", rank, " of ", world_);
  const int attention_dp = sizes_.tensor * sizes_.context;
  const int expert_dp = sizes_.expert_tensor * sizes_.expert;
  if (axis == "tied") {
    const int pp = at(rank).pp;
    if (pp != 0 && pp != sizes_.pipeline - 1) return {rank};
    std::vector<int> ranks = ranks_along("dp", rank);
    if (sizes_.pipeline == 1) return ranks;
    const int across = (sizes_.pipeline - 1) * attention_dp * dp_;
    for (const int other : ranks_along("dp", pp == 0 ? rank + across : rank - across))
      ranks.push_back(other);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  struct Axis {
    const char* name;
    int size;
    int stride;
  };
  const Axis axes[] = {
      {"tp", sizes_.tensor, 1},         {"cp", sizes_.context, sizes_.tensor},
      {"dp", dp_, attention_dp},        {"pp", sizes_.pipeline, attention_dp * dp_},
      {"etp", sizes_.expert_tensor, 1}, {"ep", sizes_.expert, sizes_.expert_tensor},
      {"edp", edp_, expert_dp},         {"stage", attention_dp * dp_, 1},
      {"exchange", expert_dp, 1}};
  for (const Axis& candidate : axes) {
    if (axis != candidate.name) continue;
    const int own = rank / candidate.stride % candidate.size;
    std::vector<int> ranks;
    for (int i = 0; i < candidate.size; ++i) ranks.push_back(rank + (i - own) * candidate.stride);
    return ranks;
  }
  fail(ExitCode::Internal, "no axis is called ", axis);
}

std::string Mesh::table() const {
  std::string text =
      concat("world ", world_, " = attention TP", sizes_.tensor, " CP", sizes_.context, " DP", dp_,
             " PP", sizes_.pipeline, " | experts ETP", sizes_.expert_tensor, " EP", sizes_.expert,
             " EDP", edp_, " PP", sizes_.pipeline, "\nrank tp cp dp pp | etp ep edp\n");
  for (int rank = 0; rank < world_; ++rank) {
    const MeshCoordinates c = at(rank);
    text += concat(rank, ' ', c.tp, ' ', c.cp, ' ', c.dp, ' ', c.pp, " | ", c.etp, ' ', c.ep, ' ',
                   c.edp, '\n');
  }
  return text;
}

MeshGroups::MeshGroups(const Mesh& mesh, Group& world)
    : mesh_(mesh), rank_(world.rank()), world_(world) {
  CHECK(mesh.world() == world.size(), "a mesh of ", mesh.world(), " ranks over a group of ",
        world.size());
  // An axis has as many ranks everywhere, and where two axes have the same ranks they do so
  // everywhere: only "tied" has ranks on some stages and none on others.
  const auto uneven = [&](const std::string& axis) {
    return axis == "tied" && mesh.sizes().pipeline > 1;
  };
  const auto make = [&](const std::string& axis) -> std::shared_ptr<Group> {
    const std::vector<int> ranks = mesh.ranks_along(axis, rank_);
    std::string name = concat(axis, '[');
    for (size_t i = 0; i < ranks.size(); ++i) name += concat(i ? "," : "", ranks[i]);
    name += ']';
    const bool alone = ranks.size() == 1;
    // Every rank takes part in a split. The lowest rank names the group: every member gives the
    // same color.
    std::shared_ptr<Group> group;
    if (!alone || uneven(axis)) group = world.split(alone ? -1 : ranks.front(), name);
    return alone ? make_solo_group(name) : std::move(group);
  };
  for (const char* axis : {"tp", "pp", "exchange"}) groups_[axis] = make(axis);
  const std::vector<std::string> reducing = {"dp", "stage", "tied", "edp"};
  for (const std::string& axis : reducing) {
    const auto known =
        std::find_if(reducing.begin(), reducing.end(), [&](const std::string& other) {
          return groups_.contains(other) && !uneven(axis) && !uneven(other) &&
                 mesh.ranks_along(axis, rank_) == mesh.ranks_along(other, rank_);
        });
    groups_[axis] = known == reducing.end() ? make(axis) : groups_.at(*known);
  }
}

Group& MeshGroups::along(const std::string& axis) const {
  const auto found = groups_.find(axis);
  CHECK(found != groups_.end(), "no axis is called ", axis);
  return *found->second;
}

}  // namespace ferry
