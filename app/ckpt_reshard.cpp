#include "app/ckpt_reshard.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "app/data/mapped_file.h"
#include "app/train_state.h"
#include "app/version.h"
#include "checkpoint/chunk_loop.h"
#include "checkpoint/directory.h"
#include "core/check.h"
#include "core/comm/thread_group.h"

namespace ferry {
namespace {

using Shards = std::map<int, MappedFile>;  // by index of the file

/// A writer may have to wait for another one's whole shard, on a slow disk.
constexpr double kSlowestShardSeconds = 24 * 3600;

/// Runs body(control) on threads that are ranks to one another; throws what failed first.
void run_writers(int num_writers, const std::function<void(Control&)>& body) {
  ThreadWorld world(num_writers, kSlowestShardSeconds);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_writers; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(world.control(rank));
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        world.fail_all(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

/// The first dim with more than one index: along it, a slice is cut into contiguous parts.
int dim_to_cut(const Shape& extent) {
  int dim = 0;
  while (dim + 1 < extent.rank() && extent[dim] == 1) ++dim;
  return dim;
}

Shape with_dim(const Shape& shape, int dim, int64_t size) {
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims[static_cast<size_t>(dim)] = size;
  return Shape(dims);
}

int64_t bytes_of_tensors(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const StoredTensor& tensor : manifest.tensors)
    bytes += tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype));
  return bytes;
}

Shards map_shards(const Checkpoint& source) {
  Shards shards;
  try {
    for (const StoredTensor& tensor : source.manifest().tensors) {
      for (const StoredSlice& slice : tensor.slices) {
        const std::string& name = source.manifest().files[static_cast<size_t>(slice.file_idx)].name;
        if (!shards.contains(slice.file_idx))
          shards.emplace(slice.file_idx, MappedFile(source.directory() / name));
      }
    }
  } catch (const Error& error) {  // a file of data to who maps it, of a checkpoint here
    fail(ExitCode::Storage, error.what());
  }
  return shards;
}

std::vector<SliceToSave> slices_of(const std::vector<SlicePart>& parts, const Shards& shards) {
  std::vector<SliceToSave> slices;
  for (const SlicePart& part : parts)
    slices.push_back({part.tensor->name, part.tensor->dtype, part.box.global, part.box.offset,
                      part.box.extent, shards.at(part.file_idx).bytes().data() + part.address});
  return slices;
}

SaveReport save_again(const Checkpoint& source, const Path& run_dir, int num_writers) {
  const Manifest& manifest = source.manifest();
  const Shards shards = map_shards(source);
  const auto shares = deal_slices(manifest, num_writers);
  SaveReport report;
  run_writers(num_writers, [&](Control& control) {
    const Attempt attempt = begin_attempt(run_dir, control);
    const std::vector<SliceToSave> slices =
        slices_of(shares[static_cast<size_t>(control.rank())], shards);
    SaveRequest request;
    request.run_dir = run_dir;
    request.step = manifest.step;
    request.attempt = attempt.number;
    request.slices = slices;
    request.state = manifest.state;
    request.descriptions = state_descriptions();
    const bool has_weights =
        std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                    [](const StoredTensor& tensor) { return tensor.name.starts_with("model/"); });
    const bool has_masters = std::any_of(
        manifest.tensors.begin(), manifest.tensors.end(),
        [](const StoredTensor& tensor) { return tensor.name.starts_with("optimizer/master/"); });
    if (has_weights && !has_masters) request.aliases = state_aliases();
    request.config = manifest.config;
    request.layout = manifest.layout;
    request.writer = "ferry " + version_text();
    request.parent = manifest.parent;
    request.chunk_bytes = manifest.chunk_bytes;
    // The writers are threads of this process, which share its CPUs and its memory for chunks.
    request.io_threads = std::max(1, choose_io_threads(manifest.total_bytes()) / num_writers);
    const SaveReport mine = save_checkpoint(request, control);
    if (control.rank() == 0) report = mine;
  });
  if (report.root != source.root())
    fail(ExitCode::Storage, source.directory().native(),
         " changed while it was read: stop what writes to it");
  return report;
}

}  // namespace

std::vector<std::vector<SlicePart>> deal_slices(const Manifest& manifest, int num_writers) {
  // Writer w gets what begins in [bounds[w], bounds[w + 1]) of all slices one after the other.
  const int64_t total = bytes_of_tensors(manifest);
  std::vector<int64_t> bounds;
  for (int64_t w = 0; w <= num_writers; ++w)
    bounds.push_back(total / num_writers * w + total % num_writers * w / num_writers);
  std::vector<std::vector<SlicePart>> shares(static_cast<size_t>(num_writers));
  int64_t position = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredSlice& slice : tensor.slices) {
      const int dim = dim_to_cut(slice.extent);
      const int64_t rows = slice.extent[dim];
      const int64_t row_bytes = tensor.bytes(slice) / rows;
      for (int64_t row = 0; row < rows;) {
        const auto next =
            std::upper_bound(bounds.begin(), bounds.end() - 1, position + row * row_bytes);
        const int64_t end = std::min(rows, (*next - position + row_bytes - 1) / row_bytes);
        const Shape offset = with_dim(slice.offset, dim, slice.offset[dim] + row);
        const Shape extent = with_dim(slice.extent, dim, end - row);
        shares[static_cast<size_t>(next - bounds.begin() - 1)].push_back(
            {&tensor,
             slice.file_idx,
             slice.address + row * row_bytes,
             {tensor.shape, offset, extent}});
        row = end;
      }
      position += rows * row_bytes;
    }
  }
  return shares;
}

SaveReport reshard_checkpoint(const Checkpoint& source, const Path& run_dir, int num_writers) {
  if (num_writers < 1 || num_writers > kMaxWriters)
    fail(ExitCode::Usage, "error: --writers ", num_writers,
         "\n  why : a checkpoint is written by 1 to ", kMaxWriters, " writers here");
  FileSystem& file_system = posix_file_system();
  if (file_system.exists(run_dir))
    fail(ExitCode::Usage, "error: ", run_dir.native(),
         " exists\n  why : the result is the only checkpoint of a new run directory\n  try : "
         "another name");
  source.verify();
  try {
    return save_again(source, run_dir, num_writers);
  } catch (const Error& error) {
    std::string trouble;
    try {
      if (file_system.exists(run_dir)) remove_tree(file_system, run_dir);
    } catch (const Error& another) {
      trouble = concat("; then ", another.what());
    }
    fail(error.code(), error.what(), trouble);
  }
}

}  // namespace ferry
