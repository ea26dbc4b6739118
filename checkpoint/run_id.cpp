#include "checkpoint/run_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/check.h"

namespace ferry {
namespace {

constexpr size_t kDigits = 32;

std::string random_id() {
  std::random_device device;  // the system's source of randomness
  std::string id;
  while (id.size() < kDigits) id += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return id;
}

}  // namespace

Path run_id_file(const Path& run_dir) { return run_dir / "RUN_ID"; }

bool is_run_id(const std::string& text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string read_run_id(FileSystem& file_system, const Path& run_dir) {
  const Path file = run_id_file(run_dir);
  const std::string text = read_text(file_system, file, 256);
  const std::string id = text.substr(0, kDigits);
  if (!is_run_id(id) || text != id + "\n")
    fail(ExitCode::Storage, file.native(),
         " does not hold the name of the run, 32 hexadecimal digits: put back what `ferry ckpt "
         "show` prints as the run of its newest checkpoint, or remove the file, and a new name is "
         "made");
  return id;
}

std::string make_run_id(FileSystem& file_system, const Path& run_dir, int64_t attempt) {
  const Path file = run_id_file(run_dir);
  if (file_system.exists(file)) return read_run_id(file_system, run_dir);
  const Path next = fmt::format("{}.a{}.tmp", file.native(), attempt);
  write_text(file_system, next, random_id() + "\n");
  file_system.rename(next, file);
  file_system.sync_directory(run_dir);
  return read_run_id(file_system, run_dir);
}

}  // namespace ferry
