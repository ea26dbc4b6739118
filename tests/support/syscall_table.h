#pragma once

// The system calls that touch files, with the place of the file among their arguments.

#include <sys/syscall.h>

#include <cstdint>
#include <string>

namespace ferry::testing {

enum class FileArgument {
  Descriptor,  // the first argument
  Path,        // the first argument
  PathAt,      // the second argument, relative to the descriptor that is the first
};

struct FileCall {
  int64_t number;
  const char* name;
  FileArgument argument;
};

inline constexpr FileCall kFileCalls[] = {
    {SYS_read, "read", FileArgument::Descriptor},
    {SYS_write, "write", FileArgument::Descriptor},
    {SYS_pread64, "pread64", FileArgument::Descriptor},
    {SYS_pwrite64, "pwrite64", FileArgument::Descriptor},
    {SYS_readv, "readv", FileArgument::Descriptor},
    {SYS_writev, "writev", FileArgument::Descriptor},
    {SYS_preadv, "preadv", FileArgument::Descriptor},
    {SYS_pwritev, "pwritev", FileArgument::Descriptor},
    {SYS_close, "close", FileArgument::Descriptor},
    {SYS_fstat, "fstat", FileArgument::Descriptor},
    {SYS_lseek, "lseek", FileArgument::Descriptor},
    {SYS_fcntl, "fcntl", FileArgument::Descriptor},
    {SYS_flock, "flock", FileArgument::Descriptor},
    {SYS_fsync, "fsync", FileArgument::Descriptor},
    {SYS_fdatasync, "fdatasync", FileArgument::Descriptor},
    {SYS_syncfs, "syncfs", FileArgument::Descriptor},
    {SYS_sync_file_range, "sync_file_range", FileArgument::Descriptor},
    {SYS_fadvise64, "fadvise64", FileArgument::Descriptor},
    {SYS_fallocate, "fallocate", FileArgument::Descriptor},
    {SYS_ftruncate, "ftruncate", FileArgument::Descriptor},
    {SYS_fchmod, "fchmod", FileArgument::Descriptor},
    {SYS_fstatfs, "fstatfs", FileArgument::Descriptor},
    {SYS_getdents64, "getdents64", FileArgument::Descriptor},
    {SYS_copy_file_range, "copy_file_range", FileArgument::Descriptor},
    {SYS_open, "open", FileArgument::Path},
    {SYS_creat, "creat", FileArgument::Path},
    {SYS_stat, "stat", FileArgument::Path},
    {SYS_lstat, "lstat", FileArgument::Path},
    {SYS_statfs, "statfs", FileArgument::Path},
    {SYS_access, "access", FileArgument::Path},
    {SYS_readlink, "readlink", FileArgument::Path},
    {SYS_truncate, "truncate", FileArgument::Path},
    {SYS_rename, "rename", FileArgument::Path},
    {SYS_link, "link", FileArgument::Path},
    {SYS_unlink, "unlink", FileArgument::Path},
    {SYS_mkdir, "mkdir", FileArgument::Path},
    {SYS_rmdir, "rmdir", FileArgument::Path},
    {SYS_chmod, "chmod", FileArgument::Path},
    {SYS_openat, "openat", FileArgument::PathAt},
    {SYS_newfstatat, "newfstatat", FileArgument::PathAt},
    {SYS_statx, "statx", FileArgument::PathAt},
    {SYS_faccessat, "faccessat", FileArgument::PathAt},
    {SYS_faccessat2, "faccessat2", FileArgument::PathAt},
    {SYS_readlinkat, "readlinkat", FileArgument::PathAt},
    {SYS_renameat, "renameat", FileArgument::PathAt},
    {SYS_renameat2, "renameat2", FileArgument::PathAt},
    {SYS_linkat, "linkat", FileArgument::PathAt},
    {SYS_unlinkat, "unlinkat", FileArgument::PathAt},
    {SYS_mkdirat, "mkdirat", FileArgument::PathAt},
};

/// The call of this number, or null if it touches no file.
inline const FileCall* find_file_call(int64_t number) {
  for (const FileCall& call : kFileCalls)
    if (call.number == number) return &call;
  return nullptr;
}

/// Whether a call named as in the table puts bytes into a file, which it may do in part.
inline bool is_write(const std::string& name) { return name == "write" || name == "pwrite64"; }
inline bool is_read(const std::string& name) { return name == "read" || name == "pread64"; }

/// Whether the call changes files or names, or makes changes durable: ignoring its failure may lose
/// data.
inline bool is_change(const std::string& name) {
  for (const char* change : {"fsync", "fdatasync", "ftruncate", "fallocate", "rename", "renameat",
                             "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"}) {
    if (name == change) return true;
  }
  return is_write(name);
}

}  // namespace ferry::testing
