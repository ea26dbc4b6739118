#pragma once

// Checkpoints of given tensors, cut among any number of ranks.

#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "tests/support/error_of.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {

struct StoredValues {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<char> bytes;  // whole, row-major
};

template <class T>
StoredValues stored_values(const std::string& name, Shape shape, const std::vector<T>& values) {
  CHECK(static_cast<int64_t>(values.size()) == shape.numel());
  StoredValues stored{name, DTypeOf<T>::value, shape, {}};
  stored.bytes.resize(values.size() * sizeof(T));
  std::memcpy(stored.bytes.data(), values.data(), stored.bytes.size());
  return stored;
}

/// 0.5, 1.5, 2.5 and so on.
inline StoredValues counted_values(const std::string& name, Shape shape) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
  return stored_values(name, shape, values);
}

/// Saves by ranks that cut every tensor along its dim `cut` (its last one, if it has fewer), with
/// chunks of 64 bytes. Returns the directory of the step.
inline Path save_values(const Path& run_dir, int64_t step, const std::vector<StoredValues>& all,
                        const State& state = {{"samples", int64_t{16}}}, int num_ranks = 1,
                        int cut = 0) {
  Path directory;
  run_ranks(num_ranks, [&](Group&, Control& control) {
    SaveRequest request;
    request.run_dir = run_dir;
    request.step = step;
    request.attempt = begin_attempt(run_dir, control).number;
    request.state = state;
    request.config = "[run]\nname = \"sample\"\n";
    request.layout = "as tested";
    request.keep = 100;
    request.chunk_bytes = 64;
    std::vector<std::vector<char>> memory;
    std::vector<SliceToSave> slices;
    for (const StoredValues& tensor : all) {
      const int dim = std::min(cut, tensor.shape.rank() - 1);
      std::vector<int64_t> offset(tensor.shape.dims().size(), 0);
      std::vector<int64_t> extent(tensor.shape.dims().begin(), tensor.shape.dims().end());
      const int64_t begin = tensor.shape[dim] * control.rank() / num_ranks;
      offset[static_cast<size_t>(dim)] = begin;
      extent[static_cast<size_t>(dim)] =
          tensor.shape[dim] * (control.rank() + 1) / num_ranks - begin;
      const Box box{tensor.shape, Shape(offset), Shape(extent)};
      const size_t element = size_of(tensor.dtype);
      std::vector<char>& bytes = memory.emplace_back(static_cast<size_t>(box.numel()) * element);
      for_each_run(box, whole_box(tensor.shape), box, [&](int64_t from, int64_t to, int64_t count) {
        std::memcpy(bytes.data() + static_cast<size_t>(to) * element,
                    tensor.bytes.data() + static_cast<size_t>(from) * element,
                    static_cast<size_t>(count) * element);
      });
      slices.push_back(
          {tensor.name, tensor.dtype, tensor.shape, box.offset, box.extent, bytes.data()});
    }
    request.slices = slices;
    const SaveReport report = save_checkpoint(request, control);
    if (control.rank() == 0) directory = report.directory;
  });
  return directory;
}

}  // namespace ferry::testing
