#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "checkpoint/chunk_loop.h"
#include "checkpoint/directory.h"
#include "checkpoint/shard_file.h"
#include "core/check.h"
#include "core/seconds_since.h"

namespace ferry {
namespace {

/// A chunk of a stored slice, as it lies in its file.
struct StoredChunk {
  const StoredTensor* tensor = nullptr;
  const StoredSlice* slice = nullptr;
  size_t idx = 0;
  int64_t begin = 0;  // in the slice, bytes
  int64_t bytes = 0;

  int64_t address() const { return slice->address + begin; }
  int64_t first_element() const { return begin / element_bytes(); }
  int64_t num_elements() const { return bytes / element_bytes(); }
  int64_t element_bytes() const { return static_cast<int64_t>(size_of(tensor->dtype)); }
};

StoredChunk make_chunk(const StoredTensor& tensor, const StoredSlice& slice, size_t idx,
                       int64_t chunk_bytes) {
  const int64_t begin = static_cast<int64_t>(idx) * chunk_bytes;
  return {&tensor, &slice, idx, begin, std::min(chunk_bytes, tensor.bytes(slice) - begin)};
}

/// So many bytes are read, then digested while they are in the core's cache.
constexpr int64_t kDigestedBytes = int64_t{1} << 19;

void read_chunk(const File& file, const Path& path, const StoredChunk& chunk, char* buffer) {
  StreamDigest digest;
  for (int64_t begin = 0; begin < chunk.bytes; begin += kDigestedBytes) {
    const auto bytes = static_cast<size_t>(std::min(kDigestedBytes, chunk.bytes - begin));
    file.read_at(buffer + begin, bytes, chunk.address() + begin);
    digest.add(buffer + begin, bytes);
  }
  if (digest.value() == chunk.slice->chunks[chunk.idx]) return;
  throw Error(
      ExitCode::Storage,
      fmt::format("{} is damaged: bytes {} to {} (chunk {} of {}) do not match their digest",
                  path.native(), chunk.address(), chunk.address() + chunk.bytes - 1, chunk.idx,
                  chunk.slice->dataset));
}

/// Of a chunk, the elements that one wanted slice has too.
struct Piece {
  StoredChunk chunk;
  const SliceToLoad* wanted = nullptr;
  char* whole = nullptr;  // where the chunk lies in the wanted slice, if all of it does in one run

  Box stored_box() const { return chunk.tensor->box(*chunk.slice); }
  Box wanted_box() const { return {wanted->global_shape, wanted->offset, wanted->extent}; }
  /// Calls visit(index in the slice, index in the wanted box, count) for runs of elements.
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    const Box stored = stored_box(), wanted_part = wanted_box();
    for_each_run_within(intersect(stored, wanted_part), stored, wanted_part, chunk.first_element(),
                        chunk.first_element() + chunk.num_elements(), visit);
  }
};

/// What of the wanted slice lies in the tensor's chunks.
void add_pieces(std::vector<Piece>& pieces, const StoredTensor& tensor, const SliceToLoad& wanted,
                int64_t chunk_bytes) {
  for (const StoredSlice& slice : tensor.slices) {
    if (intersect(tensor.box(slice), {wanted.global_shape, wanted.offset, wanted.extent}).numel() ==
        0)
      continue;
    for (size_t i = 0; i < slice.chunks.size(); ++i) {
      Piece piece{make_chunk(tensor, slice, i, chunk_bytes), &wanted};
      bool is_wanted = false;
      piece.for_each_run([&](int64_t, int64_t to, int64_t count) {
        is_wanted = true;
        if (count == piece.chunk.num_elements())
          piece.whole = static_cast<char*>(wanted.data) + to * piece.chunk.element_bytes();
      });
      if (is_wanted) pieces.push_back(piece);
    }
  }
}

/// Ends of the ranges of pieces that share a chunk.
std::vector<size_t> group_by_chunk(const std::vector<Piece>& pieces) {
  std::vector<size_t> ends;
  for (size_t i = 1; i <= pieces.size(); ++i) {
    if (i < pieces.size() && pieces[i].chunk.slice == pieces[i - 1].chunk.slice &&
        pieces[i].chunk.idx == pieces[i - 1].chunk.idx)
      continue;
    ends.push_back(i);
  }
  return ends;
}

/// Reads the chunk of a group of pieces and puts it where they want it; returns the bytes filled.
int64_t fill_pieces(const File& file, const Path& path, std::span<const Piece> group,
                    char* buffer) {
  const StoredChunk& chunk = group.front().chunk;
  const int64_t element = chunk.element_bytes();
  if (group.front().whole != nullptr) buffer = group.front().whole;  // saves a copy
  read_chunk(file, path, chunk, buffer);
  int64_t filled = 0;
  for (const Piece& piece : group) {
    piece.for_each_run([&](int64_t from, int64_t to, int64_t count) {
      filled += count * element;
      if (piece.whole == buffer) return;
      std::memcpy(static_cast<char*>(piece.wanted->data) + to * element,
                  buffer + (from - chunk.first_element()) * element,
                  static_cast<size_t>(count * element));
    });
  }
  return filled;
}

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

LoadReport Checkpoint::load(std::span<const SliceToLoad> slices, int num_threads) const {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Piece> pieces;
  int64_t wanted_bytes = 0;
  for (const SliceToLoad& wanted : slices) {
    const StoredTensor& tensor = find(wanted);
    const Box box{wanted.global_shape, wanted.offset, wanted.extent};
    const std::string defect = box_defect(box);
    CHECK(defect.empty(), "tensor ", wanted.name, ": ", defect);
    add_pieces(pieces, tensor, wanted, manifest_.chunk_bytes);
    wanted_bytes += box.numel() * static_cast<int64_t>(size_of(tensor.dtype));
  }
  // Each file from front to back, and each chunk once, whoever wants it.
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    const auto place = [](const Piece& piece) {
      return std::tuple(piece.chunk.slice->file_idx, piece.chunk.address(), piece.wanted);
    };
    return place(a) < place(b);
  });
  const std::vector<size_t> ends = group_by_chunk(pieces);

  std::map<int, std::unique_ptr<File>> files;
  int64_t bytes_to_read = 0, buffer_bytes = 0;
  for (const size_t end : ends) {
    const StoredChunk& chunk = pieces[end - 1].chunk;
    std::unique_ptr<File>& file = files[chunk.slice->file_idx];
    if (file == nullptr) file = file_system_->open(path_of(chunk.slice->file_idx));
    bytes_to_read += chunk.bytes;
    buffer_bytes = std::max(buffer_bytes, chunk.bytes);
  }
  std::atomic<int64_t> filled = 0;
  for_each_chunk(num_threads > 0 ? num_threads : choose_io_threads(bytes_to_read), std::ssize(ends),
                 buffer_bytes, [&](int64_t i, char* buffer) {
                   const auto group = static_cast<size_t>(i);
                   const size_t first = group == 0 ? 0 : ends[group - 1];
                   const int file_idx = pieces[first].chunk.slice->file_idx;
                   filled += fill_pieces(*files.at(file_idx), path_of(file_idx),
                                         {&pieces[first], ends[group] - first}, buffer);
                 });
  // The manifest proves that slices do not overlap, so the right number means each element once.
  CHECK(filled == wanted_bytes, filled.load(), " bytes of ", wanted_bytes, " were filled");
  return {filled, seconds_since(start)};
}

void Checkpoint::verify_file(int file_idx, bool from_device, std::vector<Digest128>* sums,
                             int num_threads) const {
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
  std::vector<StoredChunk> chunks;
  int64_t bytes = 0, buffer_bytes = 0;
  for (const StoredTensor& tensor : manifest_.tensors) {
    for (const StoredSlice& slice : tensor.slices) {
      if (slice.file_idx != file_idx) continue;
      for (size_t i = 0; i < slice.chunks.size(); ++i)
        chunks.push_back(make_chunk(tensor, slice, i, manifest_.chunk_bytes));
      bytes += tensor.bytes(slice);
      buffer_bytes = std::max(buffer_bytes, std::min(tensor.bytes(slice), manifest_.chunk_bytes));
    }
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const StoredChunk& a, const StoredChunk& b) { return a.address() < b.address(); });
  std::mutex mutex;
  for_each_chunk(num_threads > 0 ? num_threads : choose_io_threads(bytes), std::ssize(chunks),
                 buffer_bytes, [&](int64_t i, char* buffer) {
                   const StoredChunk& chunk = chunks[static_cast<size_t>(i)];
                   read_chunk(*file, path, chunk, buffer);
                   if (sums == nullptr) return;
                   const Digest128 part =
                       slice_digest(chunk.tensor->dtype, chunk.tensor->box(*chunk.slice), buffer,
                                    chunk.first_element(), chunk.num_elements());
                   const std::lock_guard lock(mutex);
                   (*sums)[static_cast<size_t>(chunk.tensor - manifest_.tensors.data())] += part;
                 });
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
