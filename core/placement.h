#pragma once

// Where the part of a tensor that a rank holds lies in the whole tensor.
//
// A tensor counts as a matrix here: its last dim are the columns, all others together the rows (a
// tensor of one dim has rows of one column). A rank holds runs of whole or cut rows; all its rows
// have the same columns. So a part may be cut by experts, by rows (each of several stacked matrices
// evenly: gate and up; queries, keys and values), by columns, or to the rows that it updates.

#include <span>
#include <vector>

#include "core/shape.h"

namespace ferry {

int64_t matrix_rows(const Shape& shape);
int64_t matrix_columns(const Shape& shape);

/// Rows [row, row + num_rows) of the part are rows [global_row, ...) of the whole.
struct PlacedRows {
  int64_t row = 0;
  int64_t global_row = 0;
  int64_t num_rows = 0;
  bool operator==(const PlacedRows&) const = default;
};

/// A box of the whole tensor whose elements follow each other in the part, from its row `row` on.
struct PlacedBox {
  int64_t row = 0;
  Shape offset;
  Shape extent;
  bool operator==(const PlacedBox&) const = default;
};

class Placement {
 public:
  /// All of a tensor of this shape.
  explicit Placement(const Shape& whole = {});

  const Shape& global_shape() const { return global_shape_; }
  /// Ascending by row. Rows of the part that no run names are padding: zero, not part of the whole.
  const std::vector<PlacedRows>& runs() const { return runs_; }
  int64_t first_column() const { return first_column_; }
  int64_t num_columns() const { return num_columns_; }
  int64_t num_rows() const { return num_rows_; }  // with padding

  /// The part that consists of these rows [begin, end) of this part, one range after the other.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  Placement rows(std::span<const Range> ranges) const;
  Placement rows(int64_t begin, int64_t end) const;
  /// The part of columns [begin, end) of this part.
  Placement columns(int64_t begin, int64_t end) const;
  /// With rows of padding at the end, up to `num_rows` in all.
  Placement padded(int64_t num_rows) const;

  /// The same as boxes in the coordinates of the whole tensor, for checkpoints.
  std::vector<PlacedBox> boxes() const;

 private:
  Shape global_shape_;
  std::vector<PlacedRows> runs_;
  int64_t num_rows_ = 0;
  int64_t first_column_ = 0;
  int64_t num_columns_ = 0;
};

/// The ranges that cut each of the stacked matrices (`section_rows` rows each) evenly in `size`
/// parts, and keep part `rank` of each. Every section must divide.
std::vector<Placement::Range> cut_sections(std::span<const int64_t> section_rows, int rank,
                                           int size);

}  // namespace ferry
