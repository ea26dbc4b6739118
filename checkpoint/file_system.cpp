#include "checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "checkpoint/direct_write.h"
#include "checkpoint/storage_status.h"
#include "checkpoint/uninterrupted.h"
#include "core/check.h"

namespace ferry {
namespace {

const char* remedy(int error) {
  switch (error) {
    case ENOSPC:
      return "; the disk is full: free space, or keep fewer checkpoints";
    case EDQUOT:
      return "; the quota is used up: free space, or keep fewer checkpoints";
    case EACCES:
    case EPERM:
      return "; choose a directory that you may write, or change its permissions";
    case EROFS:
      return "; the file system is read-only: choose another directory";
    case EEXIST:
      return "; another run may be using the directory";
    case ELOOP:
      return "; symbolic links are not followed here";
    case EIO:
      return "; the device reported an error: check its health before going on";
    case ESTALE:
      return "; the network file system lost the file: start again";
    default:
      return "";
  }
}

[[noreturn]] void fail_errno(const char* verb, const Path& path, int error) {
  throw Error(ExitCode::Storage, fmt::format("cannot {} {}: {}{}", verb, path.native(),
                                             std::strerror(error), remedy(error)));
}

void require(bool succeeded, const char* verb, const Path& path) {
  if (!succeeded) fail_errno(verb, path, errno);
}

/// One system call moves at most this many bytes: Linux stops at 2 GiB - 4 KiB.
constexpr size_t kMaxTransfer = size_t{1} << 30;

/// How often a file is opened again whose handle a network file system no longer knows.
constexpr int kMaxReopened = 3;

constexpr int kReadOnly = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

class PosixFile final : public File {
 public:
  PosixFile(int fd, Path path, bool is_written)
      : fd_(fd), path_(std::move(path)), is_written_(is_written) {}
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;
  ~PosixFile() override {
    if (fd_ >= 0) ::close(fd_);
  }

  void write_at(const void* data, size_t bytes, int64_t position) override {
    const auto* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = uninterrupted(
          [&] { return ::pwrite(fd_, next, std::min(bytes, kMaxTransfer), position); });
      require(written >= 0, "write", path_);
      if (written == 0) fail_errno("write", path_, ENOSPC);
      next += written;
      position += written;
      bytes -= static_cast<size_t>(written);
    }
  }

  void write_direct(const void* data, size_t bytes, int64_t position) override {
    const auto* next = static_cast<const char*>(data);
    const size_t before = static_cast<size_t>((kBlockBytes - position % kBlockBytes) % kBlockBytes);
    const size_t head = std::min(before, bytes);
    write_at(next, head, position);
    const auto rest = static_cast<int64_t>(bytes - head);
    const int64_t done =
        direct_.write(path_, next + head, rest, position + static_cast<int64_t>(head));
    require(done >= 0, "write", path_);
    const size_t written = head + static_cast<size_t>(done);
    write_at(next + written, bytes - written, position + static_cast<int64_t>(written));
  }

  void read_at(void* data, size_t bytes, int64_t position) const override {
    auto* next = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = read_some(next, std::min(bytes, kMaxTransfer), position);
      require(got >= 0, "read", path_);
      if (got == 0) {
        throw Error(ExitCode::Storage,
                    fmt::format("{} ends at byte {}, {} bytes too early: it is truncated",
                                path_.native(), position, bytes));
      }
      next += got;
      position += got;
      bytes -= static_cast<size_t>(got);
    }
  }

  int64_t size() const override {
    struct stat status {};
    require(uninterrupted([&] { return ::fstat(fd_, &status); }) == 0, "examine", path_);
    return status.st_size;
  }

  void sync() override {
    require(uninterrupted([&] { return ::fsync(fd_); }) == 0, "sync", path_);
  }

  void drop_cache() override {
    const int error = ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    if (error != 0) fail_errno("drop cached pages of", path_, error);
  }

  void close() override {
    const int fd = fd_;
    fd_ = -1;
    // After EINTR the descriptor is closed, and what was written was synced before.
    require(::close(fd) == 0 || errno == EINTR, "close", path_);
  }

 private:
  /// As pread. A stale handle is replaced for this call by a new one of the same path. What has
  /// been written is never opened again: the new handle could be of another file.
  ssize_t read_some(char* data, size_t bytes, int64_t position) const {
    ssize_t got = uninterrupted([&] { return ::pread(fd_, data, bytes, position); });
    for (int i = 0; i < kMaxReopened && got < 0 && errno == ESTALE && !is_written_; ++i) {
      const int fd = uninterrupted([&] { return ::open(path_.c_str(), kReadOnly); });
      if (fd < 0) continue;
      got = uninterrupted([&] { return ::pread(fd, data, bytes, position); });
      const int error = errno;
      ::close(fd);
      errno = error;
    }
    return got;
  }

  int fd_;
  DirectWrite direct_;
  Path path_;
  bool is_written_;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<File> create(const Path& path) override {
    const int fd = uninterrupted([&] {
      return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
    });
    require(fd >= 0, "create", path);
    return std::make_unique<PosixFile>(fd, path, /*is_written=*/true);
  }

  std::unique_ptr<File> open(const Path& path) override {
    int fd = -1;
    for (int i = 0; fd < 0 && i <= kMaxReopened && (i == 0 || errno == ESTALE); ++i)
      fd = uninterrupted([&] { return ::open(path.c_str(), kReadOnly); });
    require(fd >= 0, "open", path);
    auto file = std::make_unique<PosixFile>(fd, path, /*is_written=*/false);
    struct stat status {};
    require(uninterrupted([&] { return ::fstat(fd, &status); }) == 0, "examine", path);
    if (!S_ISREG(status.st_mode)) {
      throw Error(ExitCode::Storage, path.native() + " is not a regular file");
    }
    return file;
  }

  void make_directory(const Path& path) override {
    require(uninterrupted([&] { return ::mkdir(path.c_str(), 0750); }) == 0, "create the directory",
            path);
  }

  void sync_directory(const Path& path) override {
    const int fd =
        uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    require(fd >= 0, "open the directory", path);
    PosixFile directory(fd, path, /*is_written=*/true);
    directory.sync();
    directory.close();
  }

  void rename(const Path& from, const Path& to) override {
    if (uninterrupted([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
      const int error = errno;
      throw Error(ExitCode::Storage, fmt::format("cannot rename {} to {}: {}{}", from.native(),
                                                 to.native(), std::strerror(error), remedy(error)));
    }
  }

  void remove_file(const Path& path) override {
    require(uninterrupted([&] { return ::unlink(path.c_str()); }) == 0, "remove", path);
  }

  void remove_directory(const Path& path) override {
    require(uninterrupted([&] { return ::rmdir(path.c_str()); }) == 0, "remove the directory",
            path);
  }

  bool exists(const Path& path) override {
    struct stat status {};
    if (uninterrupted([&] { return ::lstat(path.c_str(), &status); }) == 0) return true;
    require(errno == ENOENT || errno == ENOTDIR, "examine", path);
    return false;
  }

  std::vector<DirectoryEntry> list(const Path& path) override {
    DIR* opened = nullptr;
    do {
      opened = ::opendir(path.c_str());
    } while (opened == nullptr && errno == EINTR);
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opened, &::closedir);
    require(directory != nullptr, "list the directory", path);
    std::vector<DirectoryEntry> entries;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr && errno == EINTR) continue;
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat status {};
      if (uninterrupted([&] { return ::lstat((path / name).c_str(), &status); }) != 0) {
        require(errno == ENOENT, "examine", path / name);  // removed meanwhile: not there any more
        continue;
      }
      entries.push_back({name, S_ISDIR(status.st_mode)});
    }
    require(errno == 0, "list the directory", path);
    std::sort(entries.begin(), entries.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    return entries;
  }

  StorageStatus status(const Path& path) override { return storage_status(path); }
};

}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem file_system;
  return file_system;
}

void make_directories(FileSystem& file_system, const Path& path) {
  if (path.empty() || file_system.exists(path)) return;
  const Path parent = path.parent_path();
  make_directories(file_system, parent);
  file_system.make_directory(path);
  file_system.sync_directory(parent.empty() ? Path(".") : parent);
}

void remove_tree(FileSystem& file_system, const Path& path) {
  for (const DirectoryEntry& entry : file_system.list(path)) {
    if (entry.is_directory) {
      remove_tree(file_system, path / entry.name);
    } else {
      file_system.remove_file(path / entry.name);
    }
  }
  file_system.remove_directory(path);
}

void write_text(FileSystem& file_system, const Path& path, const std::string& text) {
  const auto file = file_system.create(path);
  file->write_at(text.data(), text.size(), 0);
  file->sync();
  file->close();
}

std::string read_text(FileSystem& file_system, const Path& path, int64_t max_bytes) {
  const auto file = file_system.open(path);
  const int64_t size = file->size();
  if (size > max_bytes) {
    fail(ExitCode::Storage, path.native(), " has ", size, " bytes; at most ", max_bytes,
         " are read");
  }
  std::string text(static_cast<size_t>(size), '\0');
  file->read_at(text.data(), text.size(), 0);
  return text;
}

}  // namespace ferry
