#pragma once

// The only door between checkpoints and the operating system. Every operation either succeeds or
// throws Error(ExitCode::Storage) with the path, the reason and a remedy. A failure is never
// retried, because a file whose write, fsync or close failed once cannot be trusted again; what is
// no failure is gone on with: a call that a signal interrupted, a transfer that the system cut
// short, and a file handle that a network file system let go stale while it was open for reading.
// Tests substitute the interface to fail, shorten or stop at any operation.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace ferry {

using Path = std::filesystem::path;

/// An open file. Not for use by two threads at a time, except read_at, and write_at and
/// write_direct of places that do not overlap.
class File {
 public:
  /// Closes without a report; for a written file call close() first.
  virtual ~File() = default;
  /// Writes all `bytes` at `position` (bytes from the start).
  virtual void write_at(const void* data, size_t bytes, int64_t position) = 0;
  /// The same for large amounts: what it can of them goes past the page cache (see direct_write.h),
  /// if `data` and `position` are at the same place of a block of kBlockBytes.
  virtual void write_direct(const void* data, size_t bytes, int64_t position) {
    write_at(data, bytes, position);
  }
  /// Reads exactly `bytes`; a file that ends before is an error.
  virtual void read_at(void* data, size_t bytes, int64_t position) const = 0;
  virtual int64_t size() const = 0;
  /// Returns after the bytes are on the device (fsync).
  virtual void sync() = 0;
  /// Asks the system to forget cached pages, so that the next read comes from the device.
  virtual void drop_cache() = 0;
  virtual void close() = 0;
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;  // a symbolic link is not one
};

/// What a file system has left for this user, and what it is.
struct StorageStatus {
  int64_t free_bytes = 0;  // within the quotas that the kernel knows of
  int64_t free_files = 0;  // as many as fit in an int64_t where there is no limit
  std::string type;        // "ext4", "xfs", "tmpfs", "nfs", "lustre" ...; "0x..." if not known
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// A new file, mode 0640, for reading and writing; it must not exist.
  virtual std::unique_ptr<File> create(const Path& path) = 0;
  /// An existing file for reading; symbolic links are refused.
  virtual std::unique_ptr<File> open(const Path& path) = 0;
  /// A new directory, mode 0750; its parent must exist and it must not.
  virtual void make_directory(const Path& path) = 0;
  /// Makes created, renamed and removed names in a directory durable.
  virtual void sync_directory(const Path& path) = 0;
  virtual void rename(const Path& from, const Path& to) = 0;
  virtual void remove_file(const Path& path) = 0;
  virtual void remove_directory(const Path& path) = 0;  // must be empty
  virtual bool exists(const Path& path) = 0;
  virtual std::vector<DirectoryEntry> list(const Path& path) = 0;  // sorted by name
  /// Of the file system of the directory `path`.
  virtual StorageStatus status(const Path& path) = 0;
};

FileSystem& posix_file_system();

/// Makes the directory and its missing parents; each new name is synced.
void make_directories(FileSystem& file_system, const Path& path);
/// Removes a directory and what is in it; symbolic links are removed, not followed.
void remove_tree(FileSystem& file_system, const Path& path);
/// Creates a file with this content and syncs it (not its directory).
void write_text(FileSystem& file_system, const Path& path, const std::string& text);
/// Reads a whole file of at most `max_bytes`.
std::string read_text(FileSystem& file_system, const Path& path, int64_t max_bytes);

}  // namespace ferry
