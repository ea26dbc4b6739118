#pragma once

// A slice is a box of a named global tensor. The whole checkpoint speaks of global coordinates
// only; how ranks cut tensors is their own matter, as long as the boxes tile each tensor exactly
// once.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/dtype.h"
#include "core/shape.h"

namespace ferry {

/// A box inside a row-major tensor of shape `global`: all three have the same rank, 1 to 4.
struct Box {
  Shape global;
  Shape offset;
  Shape extent;
  bool operator==(const Box&) const = default;

  int64_t numel() const { return extent.numel(); }
  bool is_whole() const { return extent == global; }
};

/// The box of all elements.
Box whole_box(const Shape& global);

std::string to_string(const Box& box);  // "[128:256, 0:64] of [512, 64]"

/// What is wrong with the box, or an empty string.
std::string box_defect(const Box& box);

/// The common part of two boxes of one tensor; its numel() is 0 where they do not meet.
Box intersect(const Box& a, const Box& b);

/// Calls visit(index in a, index in b, count) for every run of elements of `part` that is
/// contiguous in both boxes, in row-major order. Indices count elements of the boxes stored
/// row-major. `part` lies in a and in b.
void for_each_run(const Box& part, const Box& a, const Box& b,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit);

/// The same, but only for elements of `part` whose index in `a` is in [begin, end). Takes time for
/// these elements alone, not for all of the part.
void for_each_run_within(const Box& part, const Box& a, const Box& b, int64_t begin, int64_t end,
                         const std::function<void(int64_t, int64_t, int64_t)>& visit);

/// What keeps the boxes from covering every element of `global` exactly once, or an empty string.
std::string tiling_defect(const Shape& global, std::span<const Box> boxes);

/// Where the bytes of slices are read whose memory changes while they are saved, so that only what
/// is about to change needs a copy (copy on write).
class SliceSource {
 public:
  virtual ~SliceSource() = default;
  /// The `bytes` at `data` as they were when the save began: `data` itself, or `scratch` (at least
  /// as large) filled with them. Several threads may call. Each byte of a slice is asked for once:
  /// after the call the memory at `data` may change, unless `data` itself was returned.
  virtual const void* read(const void* data, int64_t bytes, void* scratch) = 0;
};

/// What this rank writes. `name` is the global name without a leading slash, for example
/// "model/layers/7/moe/experts/fc1/weight"; its parts are of [A-Za-z0-9_.-]. `data` holds the box
/// row-major in host memory and must not change during the save, unless it is read through
/// `source`. An empty box is ignored.
struct SliceToSave {
  std::string name;
  DType dtype = DType::F32;
  Shape global_shape;
  Shape offset;
  Shape extent;
  const void* data = nullptr;
  SliceSource* source = nullptr;  // null: read from `data`
};

/// What this rank wants: any box of any stored tensor, in its stored dtype.
struct SliceToLoad {
  std::string name;
  DType dtype = DType::F32;
  Shape global_shape;
  Shape offset;
  Shape extent;
  void* data = nullptr;
};

/// What is wrong with the name of a tensor or scalar, or an empty string.
std::string name_defect(const std::string& name);

}  // namespace ferry
