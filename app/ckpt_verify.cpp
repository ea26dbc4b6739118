#include "app/ckpt_verify.h"

#include <fmt/format.h>

#include "app/train_state.h"
#include "checkpoint/directory.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/structure_damage.h"
#include "core/check.h"

namespace ferry {
namespace {

constexpr int kLinesShown = 8;

/// The bytes that a file really has; -1 where there is none.
int64_t bytes_there(const Path& path) {
  FileSystem& file_system = posix_file_system();
  return file_system.exists(path) ? file_system.open(path)->size() : -1;
}

/// Lines about slices that end after the end of their file.
std::string lost_slices(const Path& directory) {
  const Path path = directory / kManifestFileName;
  const Manifest manifest =
      parse_manifest(read_text(posix_file_system(), path, kMaxManifestBytes), path.native());
  std::vector<int64_t> sizes;
  for (const StoredFile& file : manifest.files) sizes.push_back(bytes_there(directory / file.name));
  std::string text;
  int num_lost = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredSlice& slice : tensor.slices) {
      const auto file_idx = static_cast<size_t>(slice.file_idx);
      const int64_t end = slice.address + tensor.bytes(slice);
      if (end <= sizes[file_idx] || ++num_lost > kLinesShown) continue;
      text += fmt::format("\n  lost: {} {}, bytes {} to {} of {}", tensor.name,
                          to_string(tensor.box(slice)), slice.address, end - 1,
                          manifest.files[file_idx].name);
    }
  }
  if (num_lost > kLinesShown) text += fmt::format("\n  lost: {} more", num_lost - kLinesShown);
  return text;
}

/// The ranges of a file that belong to no slice, the first few of them.
std::string ranges_between(const std::vector<Region>& regions, int64_t bytes) {
  std::string text;
  int64_t position = 0;
  int num_ranges = 0;
  const auto add = [&](int64_t end) {
    if (position < end && ++num_ranges <= kLinesShown)
      text += fmt::format("{}{} to {}", text.empty() ? "" : ", ", position, end - 1);
  };
  for (const Region& region : regions) {
    add(region.address);
    position = region.address + region.bytes;
  }
  add(bytes);
  if (num_ranges > kLinesShown) text += fmt::format(" and {} more", num_ranges - kLinesShown);
  return text;
}

/// Lines about damage to what belongs to no tensor.
std::string damaged_structure(const Path& directory) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const Manifest& manifest = checkpoint.manifest();
  std::string text;
  for (int i = 0; i < static_cast<int>(manifest.files.size()); ++i) {
    const StoredFile& file = manifest.files[static_cast<size_t>(i)];
    const std::vector<Region> regions = regions_of(manifest, i);
    const auto opened = posix_file_system().open(directory / file.name);
    if (structure_digest(*opened, regions) == file.structure) continue;
    const auto damage =
        find_structure_damage(directory, manifest, i, state_descriptions(), state_aliases());
    if (damage) {
      text += fmt::format("\n  damaged: byte {} of {}, of {} that are not what was written",
                          damage->first_byte, file.name, damage->num_bytes);
    } else {
      text += fmt::format("\n  damaged: {} somewhere in bytes {}", file.name,
                          ranges_between(regions, file.bytes));
    }
  }
  if (!text.empty()) text += "\n  why : these bytes are no tensor's: they are HDF5's own";
  return text;
}

}  // namespace

Checkpoint verify_checkpoint(const Path& directory) {
  std::string defect;
  try {
    Checkpoint checkpoint = Checkpoint::open(directory);
    checkpoint.verify();
    return checkpoint;
  } catch (const Error& error) {
    if (error.code() != ExitCode::Storage) throw;
    defect = error.what();
  }
  try {
    defect += lost_slices(directory);
    defect += damaged_structure(directory);
  } catch (const Error&) {
    // Without a manifest that can be read nobody knows what was in the files, nor without a file;
    // `defect` says so.
  }
  throw Error(ExitCode::Storage, defect);
}

}  // namespace ferry
