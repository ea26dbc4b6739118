#include "core/placement.h"

#include <algorithm>

namespace ferry {
namespace {

Shape shape_of(std::span<const int64_t> dims) { return Shape(dims); }

// The index of row `row` of a tensor whose dims but the last are `outer`.
std::vector<int64_t> row_index(std::span<const int64_t> outer, int64_t row) {
  std::vector<int64_t> index(outer.size());
  for (size_t i = outer.size(); i-- > 0;) {
    index[i] = row % outer[i];
    row /= outer[i];
  }
  return index;
}

}  // namespace

int64_t matrix_columns(const Shape& shape) { return shape.rank() > 1 ? shape[-1] : 1; }

int64_t matrix_rows(const Shape& shape) {
  if (shape.rank() == 0) return 0;
  if (shape.rank() == 1) return shape[0];
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return rows;
}

Placement::Placement(const Shape& whole)
    : global_shape_(whole), num_rows_(matrix_rows(whole)), num_columns_(matrix_columns(whole)) {
  if (num_rows_ > 0) runs_.push_back({0, 0, num_rows_});
}

Placement Placement::rows(std::span<const Range> ranges) const {
  Placement part = *this;
  part.runs_.clear();
  part.num_rows_ = 0;
  for (const Range& range : ranges) {
    CHECK(0 <= range.begin && range.begin <= range.end && range.end <= num_rows_, "rows [",
          range.begin, ", ", range.end, ") of ", num_rows_);
    for (const PlacedRows& run : runs_) {
      const int64_t begin = std::max(range.begin, run.row);
      const int64_t end = std::min(range.end, run.row + run.num_rows);
      if (begin >= end) continue;
      const PlacedRows placed{part.num_rows_ + begin - range.begin,
                              run.global_row + begin - run.row, end - begin};
      PlacedRows* last = part.runs_.empty() ? nullptr : &part.runs_.back();
      if (last != nullptr && last->row + last->num_rows == placed.row &&
          last->global_row + last->num_rows == placed.global_row)
        last->num_rows += placed.num_rows;
      else
        part.runs_.push_back(placed);
    }
    part.num_rows_ += range.end - range.begin;
  }
  return part;
}

Placement Placement::rows(int64_t begin, int64_t end) const {
  const Range range{begin, end};
  return rows(std::span(&range, 1));
}

Placement Placement::columns(int64_t begin, int64_t end) const {
  CHECK(global_shape_.rank() > 1, "a tensor of shape ", global_shape_, " has no columns to cut");
  CHECK(0 <= begin && begin <= end && end <= num_columns_, "columns [", begin, ", ", end, ") of ",
        num_columns_);
  Placement part = *this;
  part.first_column_ += begin;
  part.num_columns_ = end - begin;
  return part;
}

Placement Placement::padded(int64_t num_rows) const {
  CHECK(num_rows >= num_rows_, "padding ", num_rows_, " rows to ", num_rows);
  Placement part = *this;
  part.num_rows_ = num_rows;
  return part;
}

std::vector<PlacedBox> Placement::boxes() const {
  std::vector<PlacedBox> boxes;
  const int rank = global_shape_.rank();
  if (rank == 0 || num_columns_ == 0) return boxes;
  if (rank == 1) {
    for (const PlacedRows& run : runs_)
      boxes.push_back({run.row, Shape{run.global_row}, Shape{run.num_rows}});
    return boxes;
  }
  const auto outer = global_shape_.dims().first(static_cast<size_t>(rank - 1));
  for (const PlacedRows& run : runs_) {
    for (int64_t done = 0; done < run.num_rows;) {
      // The largest box that begins here: whole slices of the outermost dim that allows it.
      std::vector<int64_t> offset = row_index(outer, run.global_row + done);
      std::vector<int64_t> extent(outer.size(), 1);
      size_t dim = outer.size() - 1;
      int64_t slice = 1;  // rows of one step of `dim`
      while (dim > 0 && offset[dim] == 0 && slice * outer[dim] <= run.num_rows - done) {
        slice *= outer[dim];
        extent[dim] = outer[dim];
        --dim;
      }
      extent[dim] = std::min(outer[dim] - offset[dim], (run.num_rows - done) / slice);
      const int64_t num_rows = extent[dim] * slice;
      offset.push_back(first_column_);
      extent.push_back(num_columns_);
      boxes.push_back({run.row + done, shape_of(offset), shape_of(extent)});
      done += num_rows;
    }
  }
  return boxes;
}

std::vector<Placement::Range> cut_sections(std::span<const int64_t> section_rows, int rank,
                                           int size) {
  std::vector<Placement::Range> ranges;
  int64_t begin = 0;
  for (const int64_t rows : section_rows) {
    CHECK(rows % size == 0, size, " ranks do not divide ", rows, " rows");
    const int64_t part = rows / size;
    ranges.push_back({begin + rank * part, begin + (rank + 1) * part});
    begin += rows;
  }
  return ranges;
}

}  // namespace ferry
