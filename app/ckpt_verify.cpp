#include "app/ckpt_verify.h"

#include <fmt/format.h>

#include "checkpoint/directory.h"
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
  } catch (const Error&) {
    // Without a manifest that can be read nobody knows what was in the files, and `defect` says so.
  }
  throw Error(ExitCode::Storage, defect);
}

}  // namespace ferry
