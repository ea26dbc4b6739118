#include "checkpoint/preflight.h"

#include <fmt/format.h>

#include "core/check.h"

namespace ferry {

void require_storage(FileSystem& file_system, const Path& folder, int64_t bytes,
                     int64_t num_files) {
  const StorageStatus status = file_system.status(folder);
  const double needed = 1.2 * static_cast<double>(bytes);
  if (static_cast<double>(status.free_bytes) < needed)
    throw Error(
        ExitCode::Storage,
        fmt::format(
            "not enough space in {}: a checkpoint needs {:.3f} GiB (with a fifth in reserve), "
            "{:.3f} GiB are free, quotas included; free space, or lower checkpoint.keep",
            folder.native(), needed / (1 << 30),
            static_cast<double>(status.free_bytes) / (1 << 30)));
  if (status.free_files < num_files)
    fail(ExitCode::Storage, "not enough inodes in ", folder.native(), ": a checkpoint needs ",
         num_files, " files and directories, ", status.free_files,
         " may be made, quotas included; remove files, or lower checkpoint.keep");
}

void probe_storage(FileSystem& file_system, const Path& directory) {
  const std::string text = "ferry writes this to see whether checkpoints can be stored here\n";
  const Path written = directory / "probe", renamed = directory / "renamed";
  write_text(file_system, written, text);
  file_system.rename(written, renamed);
  file_system.sync_directory(directory);
  if (read_text(file_system, renamed, static_cast<int64_t>(text.size())) != text)
    fail(ExitCode::Storage, directory.native(), " does not return what was written to it");
  file_system.remove_file(renamed);
}

std::vector<std::string> storage_notices(const std::string& type, const Path& folder) {
  const auto notice = [&](std::string_view text) {
    return std::vector<std::string>{fmt::format("{} is on {}: {}", folder.native(), type, text)};
  };
  if (type == "tmpfs" || type == "ramfs")
    return notice("checkpoints are lost when this machine restarts, and take up its memory");
  if (type == "overlay")
    return notice(
        "checkpoints are gone with the container, if this is its own layer; mount a directory of "
        "the host for them");
  if (type == "nfs" || type == "cifs" || type == "smb2" || type == "9p")
    return notice(
        "a crash of the server may lose what it acknowledged unless its export is `sync` and the "
        "mount `hard`; check both");
  if (type == "fuse")
    return notice(
        "whether a sync reaches a device is up to the program that serves it; check that it does "
        "not only cache what is written");
  if (type == "lustre")
    return notice(fmt::format(
        "`lfs setstripe -c 4 -S 4M {}`, once, spreads each shard that is written from then on over "
        "4 targets",
        folder.native()));
  if (type.starts_with("0x"))
    return notice("this type is not known here; make sure that it keeps what has been synced");
  return {};
}

}  // namespace ferry
