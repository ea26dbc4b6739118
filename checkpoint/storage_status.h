#pragma once

// What Linux says of the file system that a directory is on.

#include "checkpoint/file_system.h"

namespace ferry {

/// Space and inodes that are left to this user: the least of what the file system has (statvfs) and
/// what the quotas of its user and group leave, where the kernel counts those (quotactl); the quota
/// of a file server shows only when it is used up. Error(ExitCode::Storage) if `path` cannot be
/// examined.
StorageStatus storage_status(const Path& path);

/// The name of a type of file systems by the number that statfs gives: "ext4", "nfs"; else "0x...".
std::string file_system_name(uint64_t magic);

}  // namespace ferry
