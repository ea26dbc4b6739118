#include "checkpoint/storage_status.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/quota.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "checkpoint/uninterrupted.h"
#include "core/check.h"

namespace ferry {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Of linux/magic.h, and of file systems that are not in Linux itself.
constexpr std::array kTypes = std::to_array<std::pair<uint64_t, const char*>>({
    {0xef53, "ext4"},
    {0x58465342, "xfs"},
    {0x9123683e, "btrfs"},
    {0x2fc12fc1, "zfs"},
    {0xf2f52010, "f2fs"},
    {0x4d44, "vfat"},
    {0x01021994, "tmpfs"},
    {0x858458f6, "ramfs"},
    {0x794c7630, "overlay"},
    {0x6969, "nfs"},
    {0xff534d42, "cifs"},
    {0xfe534d42, "smb2"},
    {0x01021997, "9p"},
    {0x00c36400, "ceph"},
    {0x65735546, "fuse"},
    {0x0bd00bd0, "lustre"},
    {0x47504653, "gpfs"},
    {0x19830326, "beegfs"},
});

// quotactl_fd, which needs no path of a device, has this number on every architecture; libc has no
// function for it, and older libraries no name.
constexpr int64_t kQuotactlFd = 443;

// An answer that is no quota leaves `status` as it is: most file systems have none.
void apply_quota(int fd, int type, unsigned id, StorageStatus& status) {
  dqblk quota{};
  if (::syscall(kQuotactlFd, fd, QCMD(Q_GETQUOTA, type), id, &quota) != 0) return;
  constexpr uint64_t kBlock = 1024;  // of limits; space in use is in bytes
  const auto left = [](uint64_t limit, uint64_t used) {
    return static_cast<int64_t>(limit > used ? std::min<uint64_t>(limit - used, kUnlimited) : 0);
  };
  if ((quota.dqb_valid & QIF_BLIMITS) != 0 && quota.dqb_bhardlimit > 0)
    status.free_bytes =
        std::min(status.free_bytes, left(quota.dqb_bhardlimit * kBlock, quota.dqb_curspace));
  if ((quota.dqb_valid & QIF_ILIMITS) != 0 && quota.dqb_ihardlimit > 0)
    status.free_files =
        std::min(status.free_files, left(quota.dqb_ihardlimit, quota.dqb_curinodes));
}

}  // namespace

std::string file_system_name(uint64_t magic) {
  const auto* const found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) { return t.first == magic; });
  return found != kTypes.end() ? found->second : fmt::format("{:#x}", magic);
}

StorageStatus storage_status(const Path& path) {
  const auto require = [&](bool succeeded) {
    if (!succeeded)
      throw Error(ExitCode::Storage, fmt::format("cannot ask for the free space of {}: {}",
                                                 path.native(), std::strerror(errno)));
  };
  struct statvfs space {};
  struct statfs kind {};
  require(uninterrupted([&] { return ::statvfs(path.c_str(), &space); }) == 0);
  require(uninterrupted([&] { return ::statfs(path.c_str(), &kind); }) == 0);

  StorageStatus status;
  status.free_bytes = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  // Some file systems (btrfs) make inodes as they are asked for, and count none.
  status.free_files = space.f_files == 0 ? kUnlimited : static_cast<int64_t>(space.f_favail);
  status.type = file_system_name(static_cast<uint32_t>(kind.f_type));

  const int fd =
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  require(fd >= 0);
  apply_quota(fd, USRQUOTA, ::geteuid(), status);
  apply_quota(fd, GRPQUOTA, ::getegid(), status);
  ::close(fd);
  return status;
}

}  // namespace ferry
