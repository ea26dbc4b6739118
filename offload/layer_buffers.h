#pragma once

// The memory that layer offload copies to and from.

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/tape.h"
#include "core/tensor.h"

namespace ferry {

/// Host memory for tensors that leave.
class HostBuffers {
 public:
  /// With `retain`, memory that comes back is handed out again, whatever the device's pool does.
  HostBuffers(Device& device, bool retain) : device_(device), retain_(retain) {}

  struct Buffer {
    Tensor memory;  // [capacity]
    Event unused;   // it may be written after this
    Tensor view(const Shape& shape) const { return memory.rows(0, shape.numel()).reshape(shape); }
  };
  Buffer take(int64_t num_elements, DType dtype);
  /// `last_use`: the end of the last copy out of it.
  void give_back(Buffer buffer, Event last_use);

 private:
  /// Rounded up by at most an eighth, so that tensors whose size changes a little find memory.
  static int64_t capacity_for(int64_t num_elements);

  Device& device_;
  bool retain_;
  std::map<std::pair<DType, int64_t>, std::deque<Buffer>> unused_;
};

using SavedTensors = std::vector<std::shared_ptr<SavedTensor>>;

/// Two buffers of the device, used in turn, for the tensors of one layer each.
class DoubleBuffer {
 public:
  /// A layer with these tensors will come back: what is made from now on is large enough for it.
  void expect(const SavedTensors& layer);

  /// Memory for the tensors of one layer, in order, that is free for use after what is enqueued on
  /// `compute`. Nothing if the buffer whose turn it is is in use: until the tensors that it was
  /// given to are destroyed.
  std::optional<std::vector<Tensor>> take(Stream& compute, const SavedTensors& layer);

 private:
  using Elements = std::map<DType, int64_t>;  // with the gaps that alignment takes
  static Elements elements_of(const SavedTensors& layer);

  struct Buffer {
    std::map<DType, Tensor> memory;  // [elements]
    std::vector<std::weak_ptr<const SavedTensor>> users;
    bool in_use() const;
  };

  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
  Elements largest_;
};

}  // namespace ferry
