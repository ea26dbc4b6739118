#pragma once

// Tensors of attention cut by heads, as tensor parallelism cuts them.

#include <cstdint>
#include <vector>

#include "core/ops/attention.h"
#include "tests/support/random_tensor.h"

namespace ferry::testing {

/// Heads of one of `parts` equal parts.
inline AttentionDims part_of(AttentionDims dims, int64_t parts) {
  dims.heads /= parts;
  dims.kv_heads /= parts;
  return dims;
}

struct ColumnRange {
  int64_t begin;
  int64_t size;
};

/// Where a part's queries, keys and values are in a row of the whole qkv.
inline std::vector<ColumnRange> qkv_columns(const AttentionDims& dims, int64_t part,
                                            int64_t parts) {
  const int64_t q = dims.q_width() / parts, kv = dims.kv_width() / parts;
  const int64_t keys = dims.q_width(), values = keys + dims.kv_width();
  return {{part * q, q}, {keys + part * kv, kv}, {values + part * kv, kv}};
}

/// These columns of rows of `width` values.
inline std::vector<double> columns_of(const std::vector<double>& rows, int64_t width,
                                      const std::vector<ColumnRange>& ranges) {
  std::vector<double> cut;
  for (size_t first = 0; first < rows.size(); first += static_cast<size_t>(width))
    for (const auto& [begin, size] : ranges)
      for (int64_t c = begin; c < begin + size; ++c)
        cut.push_back(rows[first + static_cast<size_t>(c)]);
  return cut;
}

/// The same of a tensor [T, W], as a new one.
inline Tensor cut_columns(Stream& stream, const Tensor& x, const std::vector<ColumnRange>& ranges) {
  int64_t width = 0;
  for (const ColumnRange& range : ranges) width += range.size;
  return tensor_of(stream, columns_of(read_back_as_double(stream, x), x.dim(1), ranges),
                   {x.dim(0), width}, x.dtype());
}

}  // namespace ferry::testing
