#pragma once

// What the optimizer's tests have instead of a model: one rank of a mesh, with parameters on every
// axis. Each pipeline stage has two blocks,
//   0: dense [10 / tp, 4], cut by rows over tp; copy [6], equal on all tp ranks; stage [3]
//   1: experts [4 / ep, 3, 2], cut by experts over ep; copied [5, 2], as copy
// and the first and the last stage have tied [5, 3] in block 0 and 1. Few of these rows divide.

#include <memory>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/ops/elementwise.h"
#include "core/pass.h"
#include "optim/reduce_groups.h"
#include "tests/support/devices.h"

namespace ferry::testing {

/// FNV-1a.
inline uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

/// A job: its ranks and how they are arranged.
struct Layout {
  int world = 1;
  MeshSizes sizes;
};

inline std::vector<Layout> layouts() {
  return {{1, {}},
          {2, {}},
          {3, {}},
          {4, {.expert = 2}},
          {4, {.pipeline = 2}},
          {4, {.tensor = 2, .expert = 4}},
          {8, {.tensor = 2, .pipeline = 2, .expert = 2}}};
}

inline std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.world << " ranks, tp " << layout.sizes.tensor << " pp "
             << layout.sizes.pipeline << " ep " << layout.sizes.expert;
}

class MeshRank {
 public:
  MeshRank(const Mesh& mesh, Group& world, DType dtype = DType::F32)
      : groups_(mesh, world),
        axes_(reduce_groups(groups_)),
        device_(make_cpu_device()),
        stream_(device_->make_stream("compute")) {
    device_->set_poison_memory(true);
    const MeshCoordinates at = mesh.at(world.rank());
    const MeshSizes sizes = mesh.sizes();
    const std::string stage = concat(at.pp, "/");
    blocks_.resize(2);
    const int64_t ten[] = {4, 6};
    cut_rows(add(0, stage + "dense", {10, 4}, dtype, ReduceAxis::Dense), ten, at.tp, sizes.tensor);
    add(0, stage + "copy", {6}, dtype, ReduceAxis::Dense).is_copy = at.tp != 0;
    add(0, stage + "stage", {3}, accumulate_dtype(dtype), ReduceAxis::Stage);
    Parameter& experts = add(1, stage + "experts", {4, 3, 2}, dtype, ReduceAxis::Expert);
    const int64_t rows = 12 / sizes.expert;
    experts.part = experts.placement().rows(at.ep * rows, (at.ep + 1) * rows);
    experts.shape = {4 / sizes.expert, 3, 2};
    add(1, stage + "copied", {5, 2}, dtype, ReduceAxis::Dense).is_copy = at.tp != 0;
    for (const int block : {0, 1}) {
      if (at.pp != (block == 0 ? 0 : sizes.pipeline - 1)) continue;
      if (block == 1 && sizes.pipeline == 1) continue;
      // Equal on all tp ranks, too: the group has those of one only.
      add(block, "tied", {5, 3}, dtype, ReduceAxis::Tied).is_copy = at.tp != 0;
    }
    for (Parameter* p : parameters()) {
      const auto whole = random_values(p->global_shape().numel(), hash_of(p->name));
      p->value = tensor_of(*stream_, part_of(*p, whole), p->shape, p->dtype);
    }
  }

  Stream& stream() { return *stream_; }
  Device& device() { return *device_; }
  const ReduceGroups& axes() const { return axes_; }
  /// A pass over the rank's blocks, without tokens.
  Pass pass() { return Pass(*stream_, tape_, batch_, totals_, {}, true); }
  const std::vector<std::vector<Parameter*>>& blocks() const { return blocks_; }
  std::vector<Parameter*> parameters() const {
    std::vector<Parameter*> all;
    for (const auto& parameter : parameters_) all.push_back(parameter.get());
    return all;
  }

  /// What this rank has of a whole tensor.
  static std::vector<double> part_of(const Parameter& parameter, const std::vector<double>& whole) {
    const int64_t columns = matrix_columns(parameter.shape);
    std::vector<double> part(static_cast<size_t>(parameter.shape.numel()));
    const Placement placement = parameter.placement();
    for (const PlacedRows& run : placement.runs())
      for (int64_t i = 0; i < run.num_rows * columns; ++i)
        part[static_cast<size_t>(run.row * columns + i)] =
            whole[static_cast<size_t>(run.global_row * columns + i)];
    return part;
  }

  /// Adds to the gradient what a backward on this rank might.
  void add_gradient(const Parameter& parameter, const std::vector<double>& whole) {
    const Tensor more =
        tensor_of(*stream_, part_of(parameter, whole), parameter.shape, parameter.grad.dtype());
    accumulate(*stream_, parameter.grad, more);
  }

 private:
  Parameter& add(int block, const std::string& name, const Shape& shape, DType dtype,
                 ReduceAxis axis) {
    auto parameter = std::make_unique<Parameter>();
    parameter->name = name;
    parameter->shape = shape;
    parameter->dtype = dtype;
    parameter->axis = axis;
    parameter->decay = shape.rank() > 1;
    blocks_[static_cast<size_t>(block)].push_back(parameter.get());
    return *parameters_.emplace_back(std::move(parameter));
  }

  MeshGroups groups_;
  ReduceGroups axes_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::vector<Parameter*>> blocks_;
  Tape tape_;
  Batch batch_;
  StepTotals totals_;
};

}  // namespace ferry::testing
