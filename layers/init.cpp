#include "layers/init.h"

#include <cmath>

#include "core/ops/elementwise.h"

namespace ferry {

uint32_t random_site(std::string_view name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

void allocate_value(Stream& stream, Parameter& parameter, uint64_t seed) {
  parameter.value = Tensor::empty(stream, "parameters", parameter.shape, parameter.dtype);
  const Placement placement = parameter.placement();
  const int64_t columns = placement.num_columns();
  const int64_t global_columns = matrix_columns(placement.global_shape());
  const Tensor matrix = parameter.value.reshape({placement.num_rows(), columns});
  if (parameter.part) stream.zero(parameter.value);  // rows of padding
  const RandomKey key{seed, 0, random_site(parameter.name)};
  for (const PlacedRows& run : placement.runs()) {
    const Tensor rows = matrix.rows(run.row, run.row + run.num_rows);
    const auto first =
        static_cast<uint64_t>(run.global_row * global_columns + placement.first_column());
    if (parameter.init.std == 0)
      fill(stream, rows, parameter.init.constant);
    else if (columns == global_columns)
      fill_normal(stream, rows, parameter.init.std, key, first);
    else
      fill_normal_rows(stream, rows, parameter.init.std, key, first, global_columns);
  }
}

double output_init_std(double std, int64_t layers) {
  return std / std::sqrt(2.0 * static_cast<double>(layers));
}

}  // namespace ferry
