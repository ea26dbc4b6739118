#include "app/data/output_file.h"

#include "core/check.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ferry {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

[[noreturn]] void fail_to(const char* action, const std::filesystem::path& path, int error) {
  fail(ExitCode::Storage, "cannot ", action, " ", path.string(), ": ", std::strerror(error));
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(path_.string() + ".tmp." + std::to_string(::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_to("create", temporary_, errno);
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  CHECK(fd_ >= 0, path_.string(), " is finished");
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t count = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (count < 0 && errno != EINTR) fail_to("write", temporary_, errno);
    if (count > 0) done += static_cast<size_t>(count);
  }
  buffer_.clear();
}

void OutputFile::finish() {
  flush();
  if (::fsync(fd_) != 0) fail_to("fsync", temporary_, errno);
  if (::close(std::exchange(fd_, -1)) != 0) fail_to("close", temporary_, errno);
}

void OutputFile::publish() {
  CHECK(fd_ < 0, "publish() before finish(): ", path_.string());
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_to("rename to", path_, errno);
  temporary_.clear();
  const auto folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_to("open", folder, errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (result != 0) fail_to("fsync", folder, error);
}

}  // namespace ferry
