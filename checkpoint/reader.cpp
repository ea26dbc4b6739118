#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "checkpoint/directory.h"
#include "checkpoint/shard_file.h"
#include "core/check.h"

namespace ferry {
namespace {

/// Reads a slice front to back, whole chunks at a time, each checked against its digest.
class ChunkReader {
 public:
  using Visit = std::function<void(const char* data, int64_t done, int64_t bytes)>;

  ChunkReader(const File& file, std::string where, const StoredSlice& slice, int64_t slice_bytes,
              int64_t chunk_bytes)
      : file_(file),
        where_(std::move(where)),
        slice_(slice),
        slice_bytes_(slice_bytes),
        chunk_bytes_(chunk_bytes),
        buffer_(static_cast<size_t>(std::min(slice_bytes, chunk_bytes))) {}

  /// Calls visit(data, bytes before, bytes) for the pieces of a range of the slice.
  void read(int64_t begin, int64_t bytes, const Visit& visit) {
    for (int64_t done = 0; done < bytes;) {
      const int64_t position = begin + done;
      load_chunk(position / chunk_bytes_);
      const int64_t inside = position % chunk_bytes_;
      const int64_t count = std::min(bytes - done, loaded_bytes_ - inside);
      visit(buffer_.data() + inside, done, count);
      done += count;
    }
  }

 private:
  void load_chunk(int64_t chunk_idx) {
    if (chunk_idx == loaded_idx_) return;
    const int64_t begin = chunk_idx * chunk_bytes_;
    loaded_bytes_ = std::min(chunk_bytes_, slice_bytes_ - begin);
    const int64_t address = slice_.address + begin;
    file_.read_at(buffer_.data(), static_cast<size_t>(loaded_bytes_), address);
    if (chunk_digest(buffer_.data(), static_cast<size_t>(loaded_bytes_)) !=
        slice_.chunks[static_cast<size_t>(chunk_idx)]) {
      throw Error(
          ExitCode::Storage,
          fmt::format("{} is damaged: bytes {} to {} (chunk {} of {}) do not match their digest",
                      where_, address, address + loaded_bytes_ - 1, chunk_idx, slice_.dataset));
    }
    loaded_idx_ = chunk_idx;
  }

  const File& file_;
  std::string where_;
  const StoredSlice& slice_;
  int64_t slice_bytes_;
  int64_t chunk_bytes_;
  std::vector<char> buffer_;
  int64_t loaded_idx_ = -1;
  int64_t loaded_bytes_ = 0;
};

}  // namespace

Checkpoint Checkpoint::open(const Path& directory, FileSystem& file_system) {
  const Path path = directory / kManifestFileName;
  if (!file_system.exists(path)) {
    fail(ExitCode::Storage, directory.native(), " has no ", kManifestFileName,
         ": it is not a complete checkpoint");
  }
  Checkpoint checkpoint(
      directory, parse_manifest(read_text(file_system, path, kMaxManifestBytes), path.native()),
      file_system);
  const auto step = step_of_directory(directory.filename().native());
  if (step && *step != checkpoint.step()) {
    fail(ExitCode::Storage, directory.native(), " holds a checkpoint of step ", checkpoint.step(),
         ": the directory was renamed");
  }
  for (size_t i = 0; i < checkpoint.manifest_.files.size(); ++i) {
    const Path file = checkpoint.path_of(static_cast<int>(i));
    if (!file_system.exists(file)) fail(ExitCode::Storage, file.native(), " is missing");
    const int64_t expected = checkpoint.manifest_.files[i].bytes;
    const int64_t size = file_system.open(file)->size();
    if (size != expected) {
      fail(ExitCode::Storage, file.native(), " has ", size, " bytes instead of ", expected,
           size < expected ? ": it is truncated" : ": it has grown");
    }
  }
  return checkpoint;
}

Path Checkpoint::path_of(int file_idx) const {
  return directory_ / manifest_.files[static_cast<size_t>(file_idx)].name;
}

const StoredTensor& Checkpoint::find(const SliceToLoad& slice) const {
  const auto found = std::lower_bound(
      manifest_.tensors.begin(), manifest_.tensors.end(), slice.name,
      [](const StoredTensor& tensor, const std::string& name) { return tensor.name < name; });
  if (found == manifest_.tensors.end() || found->name != slice.name) {
    fail(ExitCode::Storage, directory_.native(), " has no tensor ", slice.name,
         ": it was saved by another model; compare the configurations (ferry ckpt show)");
  }
  if (found->dtype != slice.dtype || found->shape != slice.global_shape) {
    fail(ExitCode::Storage, "tensor ", slice.name, " of ", directory_.native(), " is ",
         name_of(found->dtype), " ", found->shape, ", but this model needs ", name_of(slice.dtype),
         " ", slice.global_shape, ": compare the configurations (ferry ckpt show)");
  }
  return *found;
}

LoadReport Checkpoint::load(std::span<const SliceToLoad> slices) const {
  const auto start = std::chrono::steady_clock::now();
  std::map<int, std::unique_ptr<File>> files;
  LoadReport report;
  for (const SliceToLoad& wanted : slices) {
    const StoredTensor& tensor = find(wanted);
    const Box box{wanted.global_shape, wanted.offset, wanted.extent};
    const std::string defect = box_defect(box);
    CHECK(defect.empty(), "tensor ", wanted.name, ": ", defect);
    const auto element = static_cast<int64_t>(size_of(tensor.dtype));
    int64_t filled = 0;
    for (const StoredSlice& slice : tensor.slices) {
      const Box stored = tensor.box(slice);
      const Box part = intersect(box, stored);
      if (part.numel() == 0) continue;
      std::unique_ptr<File>& file = files[slice.file_idx];
      if (file == nullptr) file = file_system_->open(path_of(slice.file_idx));
      ChunkReader reader(*file, path_of(slice.file_idx), slice, tensor.bytes(slice),
                         manifest_.chunk_bytes);
      for_each_run(part, stored, box, [&](int64_t from, int64_t to, int64_t count) {
        char* target = static_cast<char*>(wanted.data) + to * element;
        reader.read(from * element, count * element,
                    [&](const char* data, int64_t done, int64_t bytes) {
                      std::memcpy(target + done, data, static_cast<size_t>(bytes));
                      filled += bytes;
                    });
      });
    }
    // The manifest proves that slices do not overlap, so the right number means each element once.
    CHECK(filled == box.numel() * element, "tensor ", wanted.name, ": ", filled,
          " bytes were filled");
    report.bytes += filled;
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

void Checkpoint::verify_file(int file_idx, bool from_device, std::vector<Digest128>* sums) const {
  const StoredFile& expected = manifest_.files[static_cast<size_t>(file_idx)];
  const Path path = path_of(file_idx);
  const auto file = file_system_->open(path);
  if (from_device) file->drop_cache();
  if (file->size() != expected.bytes) {
    fail(ExitCode::Storage, path.native(), " has ", file->size(), " bytes instead of ",
         expected.bytes);
  }
  if (structure_digest(*file, regions_of(manifest_, file_idx)) != expected.structure) {
    fail(ExitCode::Storage, path.native(),
         " is damaged: its HDF5 structure does not match the digest in the manifest");
  }
  for (size_t t = 0; t < manifest_.tensors.size(); ++t) {
    const StoredTensor& tensor = manifest_.tensors[t];
    const auto element = static_cast<int64_t>(size_of(tensor.dtype));
    for (const StoredSlice& slice : tensor.slices) {
      if (slice.file_idx != file_idx) continue;
      const Box stored = tensor.box(slice);
      ChunkReader reader(*file, path, slice, tensor.bytes(slice), manifest_.chunk_bytes);
      const Box whole = whole_box(tensor.shape);
      for_each_run(stored, stored, whole, [&](int64_t from, int64_t global, int64_t count) {
        reader.read(from * element, count * element,
                    [&](const char* data, int64_t done, int64_t bytes) {
                      if (sums == nullptr) return;
                      (*sums)[t] +=
                          run_digest(tensor.dtype, global + done / element, data, bytes / element);
                    });
      });
    }
  }
}

void Checkpoint::verify() const {
  std::vector<Digest128> sums(manifest_.tensors.size());
  for (size_t i = 0; i < manifest_.files.size(); ++i)
    verify_file(static_cast<int>(i), false, &sums);
  for (size_t t = 0; t < sums.size(); ++t) {
    if (sums[t] != manifest_.tensors[t].digest) {
      fail(ExitCode::Storage, directory_.native(), ": the content of tensor ",
           manifest_.tensors[t].name, " does not match its digest");
    }
  }
}

}  // namespace ferry
