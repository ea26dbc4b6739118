#include "checkpoint/direct_write.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "checkpoint/uninterrupted.h"

namespace ferry {
namespace {

constexpr int64_t kMaxTransfer = int64_t{1} << 30;

}  // namespace

DirectWrite::~DirectWrite() {
  if (fd_ >= 0) ::close(fd_);
}

int64_t DirectWrite::write(const std::filesystem::path& path, const void* data, int64_t bytes,
                           int64_t position) {
  const int64_t blocks = bytes - bytes % kBlockBytes;
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (blocks == 0 || position % kBlockBytes != 0 || address % kBlockBytes != 0) return 0;
  std::call_once(opened_, [&] {
    // A file system without such writes refuses here, or at the first of them.
    fd_ = uninterrupted(
        [&] { return ::open(path.c_str(), O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC); });
  });
  if (fd_ < 0) return 0;
  const auto* next = static_cast<const char*>(data);
  for (int64_t done = 0; done < blocks;) {
    const ssize_t written = uninterrupted([&] {
      return ::pwrite(fd_, next + done, static_cast<size_t>(std::min(blocks - done, kMaxTransfer)),
                      position + done);
    });
    if (written < 0 && errno == EINVAL) return done;
    if (written < 0) return -1;
    done += written;
    // After a short write the next place may be inside a block; a full disk is told by the usual
    // write.
    if (written == 0 || done % kBlockBytes != 0) return done;
  }
  return blocks;
}

}  // namespace ferry
