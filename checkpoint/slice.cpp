#include "checkpoint/slice.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "core/check.h"

namespace ferry {
namespace {

/// The row-major index, in `box`, of a point in global coordinates.
int64_t index_in(const Box& box, std::span<const int64_t> point) {
  int64_t index = 0;
  for (int d = 0; d < box.extent.rank(); ++d) {
    index = index * box.extent[d] + point[d] - box.offset[d];
  }
  return index;
}

/// The smallest box that has the elements of `box` with row-major indices [begin, end), which are
/// not none: one index in the outer dims, a range in one, everything in the inner ones.
Box box_of_range(const Box& box, int64_t begin, int64_t end) {
  std::array<int64_t, Shape::kMaxRank> offset{}, extent{};
  const int rank = box.extent.rank();
  int64_t inner = box.numel();
  bool is_split = false;
  for (int d = 0; d < rank; ++d) {
    inner /= box.extent[d];
    const int64_t first = is_split ? 0 : begin / inner;
    const int64_t last = is_split ? box.extent[d] - 1 : (end - 1) / inner;
    offset[d] = box.offset[d] + first;
    extent[d] = last - first + 1;
    is_split = is_split || last > first;
    begin -= first * inner;
    end -= first * inner;
  }
  const auto count = static_cast<size_t>(rank);
  return {box.global, Shape(std::span<const int64_t>(offset.data(), count)),
          Shape(std::span<const int64_t>(extent.data(), count))};
}

}  // namespace

Box whole_box(const Shape& global) {
  constexpr std::array<int64_t, Shape::kMaxRank> kZeros{};
  return {global, Shape(std::span<const int64_t>(kZeros.data(), global.dims().size())), global};
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (int d = 0; d < box.extent.rank(); ++d) {
    text += concat(d ? ", " : "", box.offset[d], ":", box.offset[d] + box.extent[d]);
  }
  return text + concat("] of ", box.global);
}

std::string box_defect(const Box& box) {
  const int rank = box.global.rank();
  if (rank < 1) return "a stored tensor has at least one dim";
  if (box.offset.rank() != rank || box.extent.rank() != rank) {
    return concat("offset and extent do not have the ", rank, " dims of the tensor");
  }
  for (int d = 0; d < rank; ++d) {
    // Written so that nothing can overflow.
    if (box.extent[d] > box.global[d] || box.offset[d] > box.global[d] - box.extent[d]) {
      return concat("dim ", d, ": ", box.offset[d], " + ", box.extent[d], " exceeds ",
                    box.global[d]);
    }
  }
  return "";
}

Box intersect(const Box& a, const Box& b) {
  CHECK(a.global == b.global, a.global, " and ", b.global);
  std::array<int64_t, Shape::kMaxRank> offset{}, extent{};
  const int rank = a.global.rank();
  for (int d = 0; d < rank; ++d) {
    offset[d] = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    extent[d] = std::max<int64_t>(0, end - offset[d]);
  }
  const size_t count = static_cast<size_t>(rank);
  return {a.global, Shape(std::span<const int64_t>(offset.data(), count)),
          Shape(std::span<const int64_t>(extent.data(), count))};
}

void for_each_run(const Box& part, const Box& a, const Box& b,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  if (part.numel() == 0) return;
  // The inner dims that both boxes hold whole are one run together with the dim outside them.
  int outer = part.extent.rank() - 1;
  int64_t run = part.extent[outer];
  while (outer > 0 && part.extent[outer] == a.extent[outer] &&
         part.extent[outer] == b.extent[outer]) {
    --outer;
    run *= part.extent[outer];
  }
  std::array<int64_t, Shape::kMaxRank> point{};
  for (int d = 0; d < part.extent.rank(); ++d) point[d] = part.offset[d];
  for (;;) {
    visit(index_in(a, point), index_in(b, point), run);
    int d = outer - 1;
    for (; d >= 0; --d) {
      if (++point[d] < part.offset[d] + part.extent[d]) break;
      point[d] = part.offset[d];
    }
    if (d < 0) return;
  }
}

void for_each_run_within(const Box& part, const Box& a, const Box& b, int64_t begin, int64_t end,
                         const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  if (begin >= end) return;
  const Box near = intersect(part, box_of_range(a, begin, end));
  for_each_run(near, a, b, [&](int64_t in_a, int64_t in_b, int64_t count) {
    const int64_t first = std::max(in_a, begin), last = std::min(in_a + count, end);
    if (first < last) visit(first, in_b + first - in_a, last - first);
  });
}

std::string tiling_defect(const Shape& global, std::span<const Box> boxes) {
  int64_t covered = 0;
  for (const Box& box : boxes) {
    if (box.global != global) return concat("a slice is of shape ", box.global, ", not ", global);
    if (const std::string defect = box_defect(box); !defect.empty()) return defect;
    if (box.numel() == 0) return "a slice is empty";
    covered += box.numel();
  }
  // Boxes that overlap begin, sorted by dim 0, before the other one ends there.
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return boxes[a].offset[0] < boxes[b].offset[0]; });
  for (size_t i = 0; i < order.size(); ++i) {
    const Box& first = boxes[order[i]];
    for (size_t j = i + 1; j < order.size(); ++j) {
      const Box& second = boxes[order[j]];
      if (second.offset[0] >= first.offset[0] + first.extent[0]) break;
      if (intersect(first, second).numel() > 0) {
        return concat("slices ", to_string(first), " and ", to_string(second), " overlap");
      }
    }
  }
  if (covered != global.numel()) {
    return concat("slices cover ", covered, " of ", global.numel(), " elements");
  }
  return "";
}

std::string name_defect(const std::string& name) {
  if (name.empty() || name.size() > 1024) return "a name has 1 to 1024 characters";
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_plain = std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '.';
    });
    if (part.empty() || part == "." || part == ".." || !is_plain) {
      return "parts between slashes are of letters, digits, '_', '-' and '.'";
    }
    begin = end + 1;
  }
  return "";
}

}  // namespace ferry
