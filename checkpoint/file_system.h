#pragma once

// The only door between checkpoints and the operating system. Every operation either succeeds or
// throws Error(ExitCode::Storage) with the path, the reason and a remedy; nothing is retried,
// because a file whose write, fsync or close failed once cannot be trusted again. Tests substitute
// the interface to fail, shorten or stop at any operation.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace ferry {

using Path = std::filesystem::path;

/// An open file. Not for use by two threads at a time, except read_at.
class File {
 public:
  /// Closes without a report; for a written file call close() first.
  virtual ~File() = default;
  /// Writes all `bytes` at `position` (bytes from the start).
  virtual void write_at(const void* data, size_t bytes, int64_t position) = 0;
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
  /// Bytes that this user may still write on the file system of `path`.
  virtual int64_t free_bytes(const Path& path) = 0;
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
