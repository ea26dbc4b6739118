#include "huggingface/mapped_floats.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace ferry {
namespace {

int64_t bytes_of(int64_t count) {
  return std::max<int64_t>(count, 1) * static_cast<int64_t>(sizeof(float));
}

float* map(int64_t bytes, int flags, int descriptor) {
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (memory == MAP_FAILED)
    fail(ExitCode::Resource, "error: cannot map ", bytes, " bytes: ", std::strerror(errno));
  return static_cast<float*>(memory);
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() { ::close(value_); }  // of a file that nobody will read again
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFloats MappedFloats::zeros(int64_t count) {
  const int64_t bytes = bytes_of(count);
  return {map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1), bytes};
}

MappedFloats MappedFloats::in_file(const Path& directory, int64_t count) {
  const int64_t bytes = bytes_of(count);
  std::string name = (directory / "weights-XXXXXX").string();
  const int opened = ::mkostemp(name.data(), O_CLOEXEC);
  if (opened < 0)
    fail(ExitCode::Storage, "error: cannot make a file in ", directory.string(), ": ",
         std::strerror(errno));
  const Descriptor file(opened);
  if (::unlink(name.c_str()) != 0)
    fail(ExitCode::Storage, "error: cannot unlink ", name, ": ", std::strerror(errno));
  const int code = ::posix_fallocate(file.get(), 0, bytes);
  if (code != 0)
    fail(ExitCode::Storage, "error: cannot reserve ", bytes, " bytes in ", directory.string(), ": ",
         std::strerror(code), "\n  try : a directory with more space");
  return {map(bytes, MAP_SHARED, file.get()), bytes};
}

MappedFloats::MappedFloats(MappedFloats&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

MappedFloats::~MappedFloats() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace ferry
