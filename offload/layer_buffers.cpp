#include "offload/layer_buffers.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace ferry {
namespace {

// Kernels read vectors, and matrix products want their operands on such addresses.
constexpr int64_t kAlignment = 256;  // bytes

int64_t aligned(int64_t num_elements, DType dtype) {
  const int64_t unit = kAlignment / static_cast<int64_t>(size_of(dtype));
  return (num_elements + unit - 1) / unit * unit;
}

}  // namespace

int64_t HostBuffers::capacity_for(int64_t num_elements) {
  constexpr int64_t kSmallest = 512;
  if (num_elements <= kSmallest) return kSmallest;
  const auto step =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_elements - 1))) / 8;
  return (num_elements + step - 1) / step * step;
}

HostBuffers::Buffer HostBuffers::take(int64_t num_elements, DType dtype) {
  const int64_t capacity = retain_ ? capacity_for(num_elements) : num_elements;
  std::deque<Buffer>& unused = unused_[{dtype, capacity}];
  if (unused.empty())
    return {Tensor::host(device_, "offloaded activations", {capacity}, dtype), Event()};
  // The one that came back first: its last copy is the likeliest to be done.
  Buffer buffer = std::move(unused.front());
  unused.pop_front();
  return buffer;
}

void HostBuffers::give_back(Buffer buffer, Event last_use) {
  if (!retain_) return;
  buffer.unused = std::move(last_use);
  unused_[{buffer.memory.dtype(), buffer.memory.numel()}].push_back(std::move(buffer));
}

bool DoubleBuffer::Buffer::in_use() const {
  return std::any_of(users.begin(), users.end(), [](const auto& user) { return !user.expired(); });
}

DoubleBuffer::Elements DoubleBuffer::elements_of(const SavedTensors& layer) {
  Elements elements;
  for (const auto& tensor : layer)
    elements[tensor->dtype()] += aligned(tensor->shape().numel(), tensor->dtype());
  return elements;
}

void DoubleBuffer::expect(const SavedTensors& layer) {
  for (const auto& [dtype, count] : elements_of(layer))
    largest_[dtype] = std::max(largest_[dtype], count);
}

std::optional<std::vector<Tensor>> DoubleBuffer::take(Stream& compute, const SavedTensors& layer) {
  if (buffers_[next_].in_use()) return std::nullopt;
  Buffer& buffer = buffers_[std::exchange(next_, 1 - next_)];
  for (const auto& [dtype, count] : elements_of(layer)) {
    Tensor& memory = buffer.memory[dtype];
    if (memory.defined() && memory.numel() >= count) continue;
    memory = Tensor();  // before the larger one is made
    memory = Tensor::empty(compute, "layer buffers", {std::max(largest_[dtype], count)}, dtype);
  }
  std::vector<Tensor> tensors;
  Elements begins;
  for (const auto& tensor : layer) {
    const int64_t begin = begins[tensor->dtype()], count = tensor->shape().numel();
    begins[tensor->dtype()] += aligned(count, tensor->dtype());
    tensors.push_back(
        buffer.memory.at(tensor->dtype()).rows(begin, begin + count).reshape(tensor->shape()));
  }
  buffer.users.assign(layer.begin(), layer.end());
  return tensors;
}

}  // namespace ferry
