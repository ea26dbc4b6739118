#include "optim/shards.h"

#include <algorithm>

namespace ferry {
namespace {

// Rows [begin, end) of a tensor that counts as a matrix.
Tensor matrix_part(const Tensor& tensor, const Shape& matrix, const RowRange& range) {
  return tensor.reshape(matrix).rows(range.begin, range.end);
}

}  // namespace

int64_t rows_per_rank(const Parameter& parameter, int size) {
  return (matrix_rows(parameter.shape) + size - 1) / size;
}

RowRange owned_rows(const Parameter& parameter, int rank, int size) {
  CHECK(0 <= rank && rank < size, "rank ", rank, " of ", size);
  const int64_t rows = matrix_rows(parameter.shape), per_rank = rows_per_rank(parameter, size);
  return {std::min(rank * per_rank, rows), std::min((rank + 1) * per_rank, rows)};
}

std::vector<std::unique_ptr<Parameter>> make_shards(const std::vector<Parameter*>& parameters,
                                                    const ReduceGroups& groups) {
  std::vector<std::unique_ptr<Parameter>> shards;
  for (const Parameter* whole : parameters) {
    const Group& group = groups.of(whole->axis);
    const RowRange range = owned_rows(*whole, group.rank(), group.size());
    const int64_t rows = matrix_rows(whole->shape), columns = matrix_columns(whole->shape);
    const bool one_dim = whole->shape.rank() == 1;
    const Shape matrix = one_dim ? Shape{rows} : Shape{rows, columns};
    auto shard = std::make_unique<Parameter>(*whole);
    shard->value = matrix_part(whole->value, matrix, range);
    shard->grad = matrix_part(whole->grad, matrix, range);
    shard->shape = shard->value.shape();
    shard->part = whole->placement().rows(range.begin, range.end);
    shards.push_back(std::move(shard));
  }
  return shards;
}

std::vector<Parameter*> pointers(const std::vector<std::unique_ptr<Parameter>>& shards) {
  std::vector<Parameter*> result;
  for (const auto& shard : shards) result.push_back(shard.get());
  return result;
}

}  // namespace ferry
