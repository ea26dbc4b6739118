#pragma once

// A small training state of every dtype and number of dims, cut between any number of ranks.

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/slice.h"
#include "checkpoint/writer.h"

namespace ferry::testing {

struct SampleTensor {
  std::string name;
  DType dtype;
  Shape shape;
  int cut_dim;              // the dim along which ranks cut it
  std::vector<char> bytes;  // whole, row-major
};

/// Reads the box out of a whole tensor.
inline std::vector<char> cut(const SampleTensor& tensor, const Box& box) {
  const size_t element = size_of(tensor.dtype);
  std::vector<char> bytes(static_cast<size_t>(box.numel()) * element);
  for_each_run(box, whole_box(tensor.shape), box, [&](int64_t from, int64_t to, int64_t count) {
    std::memcpy(bytes.data() + static_cast<size_t>(to) * element,
                tensor.bytes.data() + static_cast<size_t>(from) * element,
                static_cast<size_t>(count) * element);
  });
  return bytes;
}

class SampleModel {
 public:
  explicit SampleModel(uint32_t seed = 1) {
    add("model/embedding/weight", DType::F32, {10, 6}, 0, seed);
    add("model/layers/0/moe/experts/fc1/weight", DType::BF16, {4, 6, 5}, 0, seed);
    add("model/layers/0/attention/proj/weight", DType::BF16, {6, 8}, 1, seed);
    add("model/layers/0/norm/weight", DType::F32, {7}, 0, seed);
    add("optimizer/master/layers/0/attention/proj/weight", DType::F32, {6, 8}, 1, seed);
    add("optimizer/exp_avg/layers/0/attention/proj/weight", DType::F32, {6, 8}, 1, seed);
    add("optimizer/exp_avg_sq/layers/0/attention/proj/weight", DType::F64, {2, 3, 2, 4}, 2, seed);
    add("state/router_bias", DType::F32, {1, 4}, 1, seed);
    add("state/expert_tokens", DType::I64, {5}, 0, seed);
    add("state/counts", DType::I32, {3, 3}, 0, seed);
    add("state/mask", DType::U8, {9}, 0, seed);
    // The bit patterns that careless conversions destroy.
    const std::vector<uint32_t> special = {0x80000000u, 0x00000001u, 0x7fc01234u, 0xff800001u,
                                           0x7f800000u, 0x807fffffu, 0xffffffffu};
    std::memcpy(tensors_[3].bytes.data(), special.data(), 28);
  }

  const std::vector<SampleTensor>& tensors() const { return tensors_; }
  std::vector<SampleTensor>& tensors() { return tensors_; }

  /// The box of a tensor that a rank holds: an uneven cut, possibly empty.
  static Box box_of(const SampleTensor& tensor, int rank, int size) {
    const int64_t dim = tensor.shape[tensor.cut_dim];
    std::vector<int64_t> offset(tensor.shape.dims().size(), 0);
    std::vector<int64_t> extent(tensor.shape.dims().begin(), tensor.shape.dims().end());
    const int64_t begin = dim * rank / size, end = dim * (rank + 1) / size;
    offset[static_cast<size_t>(tensor.cut_dim)] = begin;
    extent[static_cast<size_t>(tensor.cut_dim)] = end - begin;
    return {tensor.shape, Shape(offset), Shape(extent)};
  }

 private:
  void add(const std::string& name, DType dtype, Shape shape, int cut_dim, uint32_t seed) {
    SampleTensor tensor{name, dtype, shape, cut_dim, {}};
    tensor.bytes.resize(static_cast<size_t>(shape.numel()) * size_of(dtype));
    uint32_t word = seed * 2654435761u + static_cast<uint32_t>(tensors_.size());
    for (char& byte : tensor.bytes) {
      word = word * 1664525u + 1013904223u;
      byte = static_cast<char>(word >> 24);
    }
    tensors_.push_back(std::move(tensor));
  }

  std::vector<SampleTensor> tensors_;
};

/// The slices of one rank, with their memory.
class RankSlices {
 public:
  RankSlices(const SampleModel& model, int rank, int size) {
    for (const SampleTensor& tensor : model.tensors()) {
      const Box box = SampleModel::box_of(tensor, rank, size);
      memory_.push_back(cut(tensor, box));
      to_save_.push_back(
          {tensor.name, tensor.dtype, tensor.shape, box.offset, box.extent, memory_.back().data()});
    }
  }
  std::vector<SliceToSave>& to_save() { return to_save_; }

 private:
  std::vector<std::vector<char>> memory_;
  std::vector<SliceToSave> to_save_;
};

inline State sample_state(int64_t step) {
  return {{"step", step},
          {"samples", step * 16},
          {"lr", 1.25e-3},
          {"negative_zero", -0.0},
          {"data/position", int64_t{1} << 40},
          {"random_key", std::numeric_limits<int64_t>::min()},
          {"schedule", std::string("cosine \"quoted\" \xc3\xa4")}};
}

struct SaveOptions {
  int64_t step = 60;
  int64_t attempt = 1;
  int keep = 3;
  std::string config = "[run]\nname = \"sample\"\n";
  int64_t chunk_bytes = 32;  // so that small tensors have several chunks
  FileSystem* file_system = &posix_file_system();
};

inline SaveRequest sample_request(const Path& run_dir, std::span<const SliceToSave> slices,
                                  const SaveOptions& options) {
  SaveRequest request;
  request.run_dir = run_dir;
  request.step = options.step;
  request.attempt = options.attempt;
  request.slices = slices;
  request.state = sample_state(options.step);
  request.config = options.config;
  request.layout = "dp=2";
  request.keep = options.keep;
  request.chunk_bytes = options.chunk_bytes;
  request.file_system = options.file_system;
  return request;
}

/// Saves the model from one rank. The attempt must have begun.
inline SaveReport save_solo(const Path& run_dir, const SampleModel& model,
                            const SaveOptions& options = {}) {
  RankSlices slices(model, 0, 1);
  SoloControl control;
  return save_checkpoint(sample_request(run_dir, slices.to_save(), options), control);
}

/// Whether a checkpoint holds exactly the model, bit for bit.
inline bool holds(const Checkpoint& checkpoint, const SampleModel& model) {
  for (const SampleTensor& tensor : model.tensors()) {
    std::vector<char> bytes(tensor.bytes.size(), 'x');
    const Box whole = whole_box(tensor.shape);
    const SliceToLoad wanted{tensor.name,  tensor.dtype, tensor.shape,
                             whole.offset, whole.extent, bytes.data()};
    checkpoint.load({&wanted, 1});
    if (bytes != tensor.bytes) return false;
  }
  return true;
}

/// The message of the Error that `body` throws with code Storage; fails the test otherwise.
template <class Body>
std::string storage_error(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code() == ExitCode::Storage ? error.what()
                                             : concat("wrong exit code: ", error.what());
  }
  return "no error";
}

}  // namespace ferry::testing
