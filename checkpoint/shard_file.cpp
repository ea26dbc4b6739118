#include "checkpoint/shard_file.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "checkpoint/digest.h"
#include "checkpoint/hdf5_handle.h"
#include "core/check.h"

namespace ferry {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

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
int64_t lay_out_dataset(hid_t file, const std::string& name, DType dtype, const Shape& extent) {
  const std::string what = "create the HDF5 dataset " + name;
  make_parent_groups(file, name);
  const Hdf5Handle properties = dataset_properties();
  require_hdf5(H5Pset_layout(properties, H5D_CONTIGUOUS), what);
  require_hdf5(H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY), what);
  require_hdf5(H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER), what);
  const Hdf5Handle type = element_type(file, dtype);
  const Hdf5Handle space = make_dataspace(extent);
  Hdf5Handle dataset(
      H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT), H5Dclose,
      what);
  const haddr_t address = H5Dget_offset(dataset);
  require_hdf5(address == HADDR_UNDEF ? -1 : 0, "place " + name);
  dataset.close("close " + name);
  return static_cast<int64_t>(address);
}

void check_superblock(const File& file, const Path& path) {
  unsigned char start[9];
  file.read_at(start, sizeof(start), 0);
  CHECK(start[8] == 3, path.native(), " has superblock version ", int{start[8]}, ", not 3");
}

}  // namespace

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
                        std::span<const SliceToSave> slices, int64_t chunk_bytes) {
  const auto start = std::chrono::steady_clock::now();
  const Path path = directory / name;
  const std::vector<size_t> order = sorted_slices(slices);
  ShardReport report;
  // Opened before the first byte is written: a later descriptor could miss an error of writing
  // back.
  const auto file = file_system.create(path);

  {
    const auto lock = lock_hdf5();
    Hdf5Handle layout = create_hdf5_file(path);
    for (const size_t i : order) {
      const SliceToSave& slice = slices[i];
      StoredSlice stored;
      stored.dataset = dataset_name(slice);
      stored.offset = slice.offset;
      stored.extent = slice.extent;
      stored.address = lay_out_dataset(layout, stored.dataset, slice.dtype, slice.extent);
      report.tensors.push_back({slice.name, slice.dtype, slice.global_shape, {}, {stored}});
    }
    layout.close("close the HDF5 file " + path.native());
  }
  check_superblock(*file, path);

  std::vector<Region> regions;
  for (size_t k = 0; k < order.size(); ++k) {
    const SliceToSave& slice = slices[order[k]];
    StoredSlice& stored = report.tensors[k].slices.front();
    const auto* bytes = static_cast<const char*>(slice.data);
    const int64_t total = slice.extent.numel() * static_cast<int64_t>(size_of(slice.dtype));
    for (int64_t begin = 0; begin < total; begin += chunk_bytes) {
      const size_t count = static_cast<size_t>(std::min(chunk_bytes, total - begin));
      stored.chunks.push_back(chunk_digest(bytes + begin, count));
      file->write_at(bytes + begin, count, stored.address + begin);
    }
    report.tensors[k].digest = slice_digest(slice.dtype, box_of(slice), slice.data);
    regions.push_back({stored.address, total});
  }
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.address < b.address; });
  report.file = {name, file->size(), structure_digest(*file, regions)};
  report.write_seconds = seconds_since(start);

  const auto sync_start = std::chrono::steady_clock::now();
  file->sync();
  file->close();
  report.sync_seconds = seconds_since(sync_start);
  return report;
}

}  // namespace ferry
