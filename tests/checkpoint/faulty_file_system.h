#pragma once

// A file system that misbehaves at a chosen operation, around the real one. Syncs are counted but
// not made: whether the device has the bytes is beyond what a test can see, and waiting is slow.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "core/check.h"

namespace ferry::testing {

/// Thrown instead of an Error when the process "dies": not a std::exception, so nothing handles it.
struct Killed {};

enum class Fault {
  Fail,        // the operation does nothing and reports an error
  ShortWrite,  // as Fail, but half of the bytes of a write are in the file
  Kill,        // as ShortWrite, and no later operation happens
  Lie,         // a read returns a flipped bit; other operations work
};

class FaultyFileSystem final : public FileSystem {
 public:
  FaultyFileSystem() = default;
  FaultyFileSystem(int fail_at, Fault fault) : fail_at_(fail_at), fault_(fault) {}

  /// Operations so far, with names: the last one is where a fault would have hit.
  const std::vector<std::string>& operations() const { return operations_; }
  void set_status(const StorageStatus& status) { status_ = status; }

  std::unique_ptr<File> create(const Path& path) override;
  std::unique_ptr<File> open(const Path& path) override;
  void make_directory(const Path& path) override {
    step("mkdir", path);
    real_.make_directory(path);
  }
  void sync_directory(const Path& path) override { step("fsync", path); }
  void rename(const Path& from, const Path& to) override {
    step("rename", from);
    real_.rename(from, to);
  }
  void remove_file(const Path& path) override {
    step("unlink", path);
    real_.remove_file(path);
  }
  void remove_directory(const Path& path) override {
    step("rmdir", path);
    real_.remove_directory(path);
  }
  bool exists(const Path& path) override {
    step("stat", path);
    return real_.exists(path);
  }
  std::vector<DirectoryEntry> list(const Path& path) override {
    step("list", path);
    return real_.list(path);
  }
  StorageStatus status(const Path& path) override {
    step("statvfs", path);
    return status_ ? *status_ : real_.status(path);
  }

  /// Counts an operation. Returns true if a read has to lie; throws if the operation has to fail,
  /// after calling `partly`.
  bool step(const std::string& name, const Path& path,
            const std::function<void()>& partly = nullptr) {
    if (is_dead_) throw Killed();
    operations_.push_back(name + " " + path.filename().native());
    if (static_cast<int>(operations_.size()) - 1 != fail_at_) return false;
    if (fault_ == Fault::Lie) return true;
    if (partly && fault_ != Fault::Fail) partly();
    if (fault_ == Fault::Kill) {
      is_dead_ = true;
      throw Killed();
    }
    throw Error(ExitCode::Storage, "cannot " + name + " " + path.native() + ": injected error");
  }

 private:
  FileSystem& real_ = posix_file_system();
  int fail_at_ = -1;
  Fault fault_ = Fault::Fail;
  bool is_dead_ = false;
  std::optional<StorageStatus> status_;
  std::vector<std::string> operations_;
};

class FaultyFile final : public File {
 public:
  FaultyFile(FaultyFileSystem& owner, std::unique_ptr<File> real, Path path)
      : owner_(owner), real_(std::move(real)), path_(std::move(path)) {}
  void write_at(const void* data, size_t bytes, int64_t position) override {
    owner_.step("write", path_, [&] { real_->write_at(data, bytes / 2, position); });
    real_->write_at(data, bytes, position);
  }
  void read_at(void* data, size_t bytes, int64_t position) const override {
    const bool lie = owner_.step("read", path_);
    real_->read_at(data, bytes, position);
    if (lie) static_cast<char*>(data)[bytes / 2] ^= 4;
  }
  int64_t size() const override {
    owner_.step("fstat", path_);
    return real_->size();
  }
  void sync() override { owner_.step("fsync", path_); }
  void drop_cache() override {
    owner_.step("fadvise", path_);
    real_->drop_cache();
  }
  void close() override {
    owner_.step("close", path_);
    real_->close();
  }

 private:
  FaultyFileSystem& owner_;
  std::unique_ptr<File> real_;
  Path path_;
};

inline std::unique_ptr<File> FaultyFileSystem::create(const Path& path) {
  step("create", path);
  return std::make_unique<FaultyFile>(*this, real_.create(path), path);
}

inline std::unique_ptr<File> FaultyFileSystem::open(const Path& path) {
  step("open", path);
  return std::make_unique<FaultyFile>(*this, real_.open(path), path);
}

}  // namespace ferry::testing
