#include "core/parameter.h"

#include <vector>

namespace ferry {

void cut_rows(Parameter& parameter, std::span<const int64_t> section_rows, int rank, int size) {
  if (size == 1) return;
  const Placement part = parameter.placement().rows(cut_sections(section_rows, rank, size));
  const auto old = parameter.shape.dims();
  std::vector<int64_t> dims(old.begin(), old.end());
  // The cut dim is the last one of the rows: experts, if any, stay whole.
  const size_t cut = dims.size() > 1 ? dims.size() - 2 : 0;
  CHECK(matrix_rows(parameter.shape) == part.num_rows() * size, parameter.name,
        ": the sections are not all of its rows");
  dims[cut] /= size;
  parameter.shape = Shape(std::span<const int64_t>(dims));
  parameter.part = part;
}

void cut_columns(Parameter& parameter, int rank, int size) {
  if (size == 1) return;
  const int64_t columns = matrix_columns(parameter.shape);
  CHECK(columns % size == 0, parameter.name, ": ", size, " ranks do not divide ", columns,
        " columns");
  const int64_t own = columns / size;
  parameter.part = parameter.placement().columns(rank * own, (rank + 1) * own);
  const auto old = parameter.shape.dims();
  std::vector<int64_t> dims(old.begin(), old.end());
  dims.back() = own;
  parameter.shape = Shape(std::span<const int64_t>(dims));
}

}  // namespace ferry
