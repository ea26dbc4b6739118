#include "checkpoint/structure_damage.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/global_file.h"
#include "checkpoint/shard_file.h"
#include "core/check.h"

namespace ferry {
namespace {

/// A directory of our own that is removed with what is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "ferry-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr)
      fail(ExitCode::Storage, "cannot make a directory like ", name);
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;  // what is left there does no harm
    std::filesystem::remove_all(path_, ignored);
  }
  const Path& path() const { return path_; }

 private:
  Path path_;
};

/// Lays a shard out as its writer did: by name, and of one name by place.
void make_shard(const Path& path, const Manifest& manifest, int file_idx) {
  std::vector<ShardDataset> datasets;
  for (const StoredTensor& tensor : manifest.tensors)
    for (const StoredSlice& slice : tensor.slices)
      if (slice.file_idx == file_idx)
        datasets.push_back({slice.dataset, tensor.dtype, slice.extent});
  lay_out_shard(path, datasets);
}

void make_global(const Path& directory, Manifest manifest,
                 const std::map<std::string, std::string>& descriptions,
                 const std::map<std::string, std::string>& aliases) {
  // When it was written, it was not yet one of the files.
  std::erase_if(manifest.files,
                [](const StoredFile& file) { return file.name == kGlobalFileName; });
  write_global_file(posix_file_system(), directory, manifest, descriptions, aliases);
}

/// Adds what differs in [begin, end).
void compare(const File& a, const File& b, int64_t begin, int64_t end,
             std::optional<StructureDamage>& damage) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<char> x, y;
  for (; begin < end; begin += kPiece) {
    const auto bytes = static_cast<size_t>(std::min(kPiece, end - begin));
    x.resize(bytes);
    y.resize(bytes);
    a.read_at(x.data(), bytes, begin);
    b.read_at(y.data(), bytes, begin);
    for (size_t i = 0; i < bytes; ++i) {
      if (x[i] == y[i]) continue;
      if (!damage) damage = StructureDamage{begin + static_cast<int64_t>(i), 0};
      ++damage->num_bytes;
    }
  }
}

}  // namespace

std::optional<StructureDamage> find_structure_damage(
    const Path& directory, const Manifest& manifest, int file_idx,
    const std::map<std::string, std::string>& descriptions,
    const std::map<std::string, std::string>& aliases) {
  const StoredFile& stored = manifest.files[static_cast<size_t>(file_idx)];
  const std::vector<Region> regions = regions_of(manifest, file_idx);
  FileSystem& file_system = posix_file_system();
  const auto file = file_system.open(directory / stored.name);
  const bool is_global = stored.name == kGlobalFileName;
  for (const bool with_aliases : {true, false}) {
    const TemporaryDirectory temporary;
    const Path path = temporary.path() / stored.name;
    if (is_global) {
      const std::map<std::string, std::string> none;
      make_global(temporary.path(), manifest, descriptions, with_aliases ? aliases : none);
    } else {
      write_text(file_system, path, "");
      make_shard(path, manifest, file_idx);
    }
    const auto again = file_system.open(path);
    if (again->size() == stored.bytes && structure_digest(*again, regions) == stored.structure) {
      std::optional<StructureDamage> damage;
      int64_t position = 0;
      for (const Region& region : regions) {
        compare(*file, *again, position, region.address, damage);
        position = region.address + region.bytes;
      }
      compare(*file, *again, position, stored.bytes, damage);
      return damage;
    }
    if (!is_global) break;
  }
  return std::nullopt;
}

}  // namespace ferry
