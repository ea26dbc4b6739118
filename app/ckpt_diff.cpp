#include "app/ckpt_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "core/check.h"

namespace ferry {
namespace {

using Indices = std::vector<int64_t>;

/// The indices in a tensor of its element number `element`.
Indices indices_of(const Shape& shape, int64_t element) {
  Indices indices(shape.dims().size());
  for (int d = shape.rank() - 1; d >= 0; --d) {
    indices[static_cast<size_t>(d)] = element % shape[d];
    element /= shape[d];
  }
  return indices;
}

/// Calls visit(index of the first element, box) for boxes of at most `max_elements` that follow one
/// another in the row-major order of the tensor.
void for_each_block(const Shape& shape, int64_t max_elements,
                    const std::function<void(int64_t, const Box&)>& visit) {
  // Boxes cut this dim; the dims inside it are whole, and those outside it are of one index.
  int cut = shape.rank() - 1;
  int64_t inner = 1;
  while (cut > 0 && inner * shape[cut] <= max_elements) inner *= shape[cut--];
  const int64_t rows = std::max<int64_t>(1, max_elements / inner);
  const int64_t group = inner * shape[cut];
  for (int64_t begin = 0; begin < shape.numel(); begin += group) {
    for (int64_t row = 0; row < shape[cut]; row += rows) {
      const Indices offset = indices_of(shape, begin + row * inner);
      Indices extent(shape.dims().begin(), shape.dims().end());
      for (int d = 0; d < cut; ++d) extent[static_cast<size_t>(d)] = 1;
      extent[static_cast<size_t>(cut)] = std::min(rows, shape[cut] - row);
      visit(begin + row * inner, {shape, Shape(offset), Shape(extent)});
    }
  }
}

template <class T>
double value_at(const std::vector<char>& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

double value_at(DType dtype, const std::vector<char>& bytes, int64_t i) {
  switch (dtype) {
    case DType::F32:
      return value_at<float>(bytes, i);
    case DType::F64:
      return value_at<double>(bytes, i);
    case DType::BF16:
      return value_at<BFloat16>(bytes, i);
    case DType::I32:
      return value_at<int32_t>(bytes, i);
    case DType::I64:
      return value_at<int64_t>(bytes, i);
    case DType::U8:
      return value_at<uint8_t>(bytes, i);
  }
  return 0;
}

void compare_element(TensorDifference& difference, double a, double b) {
  double absolute = std::abs(a - b);
  double relative = absolute == 0 ? 0 : absolute / std::max(std::abs(a), std::abs(b));
  if (!std::isfinite(absolute)) absolute = relative = std::numeric_limits<double>::infinity();
  difference.largest_absolute = std::max(difference.largest_absolute, absolute);
  difference.largest_relative = std::max(difference.largest_relative, relative);
}

TensorDifference compare_values(const Checkpoint& a, const Checkpoint& b,
                                const StoredTensor& tensor, int64_t block_elements) {
  const size_t element = size_of(tensor.dtype);
  TensorDifference difference;
  difference.name = tensor.name;
  difference.num_elements = tensor.shape.numel();
  for_each_block(tensor.shape, block_elements, [&](int64_t begin, const Box& box) {
    const int64_t count = box.numel();
    std::vector<char> of_a(static_cast<size_t>(count) * element), of_b(of_a.size());
    const auto load = [&](const Checkpoint& checkpoint, std::vector<char>& bytes) {
      const SliceToLoad wanted{tensor.name, tensor.dtype, tensor.shape,
                               box.offset,  box.extent,   bytes.data()};
      checkpoint.load({&wanted, 1});
    };
    load(a, of_a);
    load(b, of_b);
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(i) * element;
      if (std::memcmp(of_a.data() + at, of_b.data() + at, element) == 0) continue;
      const double x = value_at(tensor.dtype, of_a, i), y = value_at(tensor.dtype, of_b, i);
      if (difference.num_different++ == 0) {
        difference.first = indices_of(tensor.shape, begin + i);
        difference.first_a = x;
        difference.first_b = y;
      }
      compare_element(difference, x, y);
    }
  });
  CHECK(difference.num_different > 0, "tensor ", tensor.name,
        " has two digests but the same elements");
  return difference;
}

/// Both values of every name that either has, in the order of names; nullptr where it is absent.
template <class T>
std::map<std::string, std::pair<const T*, const T*>> pairs(const std::map<std::string, T>& a,
                                                           const std::map<std::string, T>& b) {
  std::map<std::string, std::pair<const T*, const T*>> both;
  for (const auto& [name, value] : a) both[name].first = &value;
  for (const auto& [name, value] : b) both[name].second = &value;
  return both;
}

std::map<std::string, StoredTensor> by_name(const Checkpoint& checkpoint) {
  std::map<std::string, StoredTensor> tensors;
  for (const StoredTensor& tensor : checkpoint.manifest().tensors)
    tensors.emplace(tensor.name, tensor);
  return tensors;
}

std::string text_of(const StateValue* value) {
  if (value == nullptr) return "";
  return std::visit([](const auto& content) { return fmt::format("{}", content); }, *value);
}

/// The scalars, and the step of the manifest where no scalar says it.
State scalars_of(const Checkpoint& checkpoint) {
  State state = checkpoint.state();
  const auto step = state.find("step");
  if (step == state.end() || step->second != StateValue(checkpoint.step()))
    state.emplace("(step)", checkpoint.step());
  return state;
}

bool same_bits(const StateValue& a, const StateValue& b) {
  const auto* x = std::get_if<double>(&a);
  const auto* y = std::get_if<double>(&b);
  return x != nullptr && y != nullptr ? std::memcmp(x, y, sizeof(double)) == 0 : a == b;
}

}  // namespace

CheckpointDifference diff_checkpoints(const Checkpoint& a, const Checkpoint& b,
                                      int64_t block_elements) {
  CHECK(block_elements >= 1, "blocks of ", block_elements, " elements");
  a.verify();  // from here on, equal digests mean equal bits
  b.verify();
  CheckpointDifference result;
  const auto tensors_a = by_name(a), tensors_b = by_name(b);
  const auto tensors = pairs(tensors_a, tensors_b);
  result.num_tensors = static_cast<int64_t>(tensors.size());
  for (const auto& [name, both] : tensors) {
    const auto [x, y] = both;
    const auto mismatch = [&, &key = name](std::string text) {
      TensorDifference difference;
      difference.name = key;
      difference.mismatch = std::move(text);
      result.tensors.push_back(std::move(difference));
    };
    if (y == nullptr)
      mismatch("only in the first");
    else if (x == nullptr)
      mismatch("only in the second");
    else if (x->dtype != y->dtype || x->shape != y->shape)
      mismatch(concat(name_of(x->dtype), ' ', x->shape, " and ", name_of(y->dtype), ' ', y->shape));
    else if (x->digest != y->digest)
      result.tensors.push_back(compare_values(a, b, *x, block_elements));
  }
  const State state_a = scalars_of(a), state_b = scalars_of(b);
  const auto scalars = pairs(state_a, state_b);
  result.num_scalars = static_cast<int64_t>(scalars.size());
  for (const auto& [name, both] : scalars) {
    const auto [x, y] = both;
    if (x != nullptr && y != nullptr && same_bits(*x, *y)) continue;
    result.scalars.push_back({name, text_of(x), text_of(y)});
  }
  return result;
}

}  // namespace ferry
