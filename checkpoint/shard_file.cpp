#include "checkpoint/shard_file.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>

#include "checkpoint/chunk_loop.h"
#include "checkpoint/digest.h"
#include "checkpoint/hdf5_handle.h"
#include "core/check.h"
#include "core/seconds_since.h"

namespace ferry {
namespace {

Box box_of(const SliceToSave& slice) { return {slice.global_shape, slice.offset, slice.extent}; }

/// The tensor's own name where the slice is all of it; else the offset tells slices apart.
std::string dataset_name(const SliceToSave& slice) {
  if (box_of(slice).is_whole()) return slice.name;
  std::string name = slice.name + "@";
  for (int d = 0; d < slice.offset.rank(); ++d) name += concat(d ? "," : "", slice.offset[d]);
  return name;
}

/// Indices of the slices with content, sorted by name and place: files must not depend on the order
/// in which the caller lists them.
std::vector<size_t> sorted_slices(std::span<const SliceToSave> slices) {
  std::vector<size_t> order;
  for (size_t i = 0; i < slices.size(); ++i) {
    const SliceToSave& slice = slices[i];
    const std::string name_problem = name_defect(slice.name);
    CHECK(name_problem.empty(), "tensor '", slice.name, "': ", name_problem);
    const std::string box_problem = box_defect(box_of(slice));
    CHECK(box_problem.empty(), "tensor ", slice.name, ": ", box_problem);
    if (slice.extent.numel() == 0) continue;
    CHECK(slice.data != nullptr, "tensor ", slice.name, " has no data");
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (slices[a].name != slices[b].name) return slices[a].name < slices[b].name;
    const auto x = slices[a].offset.dims(), y = slices[b].offset.dims();
    return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
  });
  return order;
}

/// Creates the dataset with its space allocated and returns the address in the file.
int64_t lay_out_dataset(hid_t file, const ShardDataset& dataset) {
  const std::string what = "create the HDF5 dataset " + dataset.name;
  make_parent_groups(file, dataset.name);
  const Hdf5Handle properties = dataset_properties();
  require_hdf5(H5Pset_layout(properties, H5D_CONTIGUOUS), what);
  require_hdf5(H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY), what);
  require_hdf5(H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER), what);
  const Hdf5Handle type = element_type(file, dataset.dtype);
  const Hdf5Handle space = make_dataspace(dataset.extent);
  Hdf5Handle created(
      H5Dcreate2(file, dataset.name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT),
      H5Dclose, what);
  const haddr_t address = H5Dget_offset(created);
  require_hdf5(address == HADDR_UNDEF ? -1 : 0, "place " + dataset.name);
  created.close("close " + dataset.name);
  return static_cast<int64_t>(address);
}

void check_superblock(const File& file, const Path& path) {
  unsigned char start[9];
  file.read_at(start, sizeof(start), 0);
  CHECK(start[8] == 3, path.native(), " has superblock version ", int{start[8]}, ", not 3");
}

/// A chunk of a slice that is to be written.
struct Chunk {
  const SliceToSave* slice = nullptr;
  StoredTensor* stored = nullptr;  // of one slice, which has room for the digest
  size_t idx = 0;

  int64_t begin(int64_t chunk_bytes) const { return static_cast<int64_t>(idx) * chunk_bytes; }
};

/// Makes room for the digests of all chunks, and lists them in the order of the file.
std::vector<Chunk> chunks_of(std::span<const SliceToSave> slices, const std::vector<size_t>& order,
                             std::vector<StoredTensor>& tensors, int64_t chunk_bytes) {
  std::vector<Chunk> chunks;
  for (size_t k = 0; k < order.size(); ++k) {
    StoredSlice& stored = tensors[k].slices.front();
    const int64_t bytes = tensors[k].bytes(stored);
    stored.chunks.resize(static_cast<size_t>((bytes + chunk_bytes - 1) / chunk_bytes));
    for (size_t i = 0; i < stored.chunks.size(); ++i)
      chunks.push_back({&slices[order[k]], &tensors[k], i});
  }
  std::sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) {
    const int64_t x = a.stored->slices[0].address, y = b.stored->slices[0].address;
    return x != y ? x < y : a.idx < b.idx;
  });
  return chunks;
}

/// Both digests and the write see the same bytes: the caller's memory may be about to change, and
/// is read once. `buffer` has room for a chunk and a block.
void write_chunk(File& file, const Chunk& chunk, int64_t chunk_bytes, char* buffer,
                 std::mutex& mutex) {
  StoredTensor& tensor = *chunk.stored;
  StoredSlice& stored = tensor.slices.front();
  const int64_t begin = chunk.begin(chunk_bytes);
  const int64_t bytes = std::min(chunk_bytes, tensor.bytes(stored) - begin);
  const int64_t address = stored.address + begin;
  const auto count = static_cast<size_t>(bytes);
  // Direct writes need the same place of a block in memory and in the file.
  char* aligned = buffer + address % kBlockBytes;
  const char* memory = static_cast<const char*>(chunk.slice->data) + begin;
  const void* data = memory;
  if (chunk.slice->source != nullptr) data = chunk.slice->source->read(memory, bytes, aligned);
  if (data != aligned && reinterpret_cast<uintptr_t>(data) % kBlockBytes !=
                             static_cast<uintptr_t>(address % kBlockBytes)) {
    std::memcpy(aligned, data, count);
    data = aligned;
  }
  stored.chunks[chunk.idx] = chunk_digest(data, count);
  const auto element = static_cast<int64_t>(size_of(tensor.dtype));
  const Digest128 part =
      slice_digest(tensor.dtype, tensor.box(stored), data, begin / element, bytes / element);
  file.write_direct(data, count, address);
  const std::lock_guard lock(mutex);
  tensor.digest += part;
}

}  // namespace

std::vector<int64_t> lay_out_shard(const Path& path, std::span<const ShardDataset> datasets) {
  const auto lock = lock_hdf5();
  Hdf5Handle file = create_hdf5_file(path);
  std::vector<int64_t> addresses;
  for (const ShardDataset& dataset : datasets) addresses.push_back(lay_out_dataset(file, dataset));
  file.close("close the HDF5 file " + path.native());
  return addresses;
}

Digest128 structure_digest(const File& file, std::span<const Region> regions) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<char> buffer(static_cast<size_t>(kPiece));
  StreamDigest digest;
  const auto add = [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const size_t bytes = static_cast<size_t>(std::min(kPiece, end - begin));
      file.read_at(buffer.data(), bytes, begin);
      digest.add(buffer.data(), bytes);
      begin += static_cast<int64_t>(bytes);
    }
  };
  int64_t position = 0;
  for (const Region& region : regions) {
    add(position, region.address);
    position = region.address + region.bytes;
  }
  add(position, file.size());
  return digest.value();
}

ShardReport write_shard(FileSystem& file_system, const Path& directory, const std::string& name,
                        std::span<const SliceToSave> slices, int64_t chunk_bytes, int num_threads) {
  CHECK(chunk_bytes > 0 && chunk_bytes % 8 == 0, "chunks of ", chunk_bytes, " bytes");
  const auto start = std::chrono::steady_clock::now();
  const Path path = directory / name;
  const std::vector<size_t> order = sorted_slices(slices);
  // Opened before the first byte is written: a later descriptor could miss an error of writing
  // back.
  const auto file = file_system.create(path);

  std::vector<ShardDataset> datasets;
  for (const size_t i : order)
    datasets.push_back({dataset_name(slices[i]), slices[i].dtype, slices[i].extent});
  const std::vector<int64_t> addresses = lay_out_shard(path, datasets);
  check_superblock(*file, path);

  ShardReport report;
  std::vector<Region> regions;
  for (size_t k = 0; k < order.size(); ++k) {
    const SliceToSave& slice = slices[order[k]];
    StoredSlice stored;
    stored.dataset = datasets[k].name;
    stored.address = addresses[k];
    stored.offset = slice.offset;
    stored.extent = slice.extent;
    report.tensors.push_back({slice.name, slice.dtype, slice.global_shape, {}, {stored}});
    regions.push_back({stored.address, report.tensors.back().bytes(stored)});
  }
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.address < b.address; });
  int64_t bytes = 0;
  for (const Region& region : regions) bytes += region.bytes;

  const std::vector<Chunk> chunks = chunks_of(slices, order, report.tensors, chunk_bytes);
  std::mutex mutex;
  for_each_chunk(num_threads > 0 ? num_threads : choose_io_threads(bytes), std::ssize(chunks),
                 chunk_bytes + kBlockBytes, [&](int64_t i, char* buffer) {
                   write_chunk(*file, chunks[static_cast<size_t>(i)], chunk_bytes, buffer, mutex);
                 });
  report.file = {name, file->size(), structure_digest(*file, regions)};
  report.write_seconds = seconds_since(start);

  const auto sync_start = std::chrono::steady_clock::now();
  file->sync();
  file->close();
  report.sync_seconds = seconds_since(sync_start);
  return report;
}

}  // namespace ferry
