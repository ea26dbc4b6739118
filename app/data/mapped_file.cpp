#include "app/data/mapped_file.h"

#include "core/check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ferry {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }  // read-only: nothing can be lost by a failing close
};

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) {
    const int error = errno;
    fail(ExitCode::Data, "cannot open ", path_.string(), ": ", std::strerror(error));
  }
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) {
    fail(ExitCode::Data, "cannot read the size of ", path_.string(), ": ", std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) fail(ExitCode::Data, path_.string(), " is not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) {
    fail(ExitCode::Data, "cannot map ", path_.string(), " (", size,
         " bytes): ", std::strerror(errno));
  }
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace ferry
