#include "huggingface/staged_directory.h"

#include <filesystem>

#include "core/check.h"

namespace ferry {

StagedDirectory::StagedDirectory(const Path& directory, FileSystem& file_system)
    : file_system_(file_system), final_(std::filesystem::absolute(directory).lexically_normal()) {
  if (!final_.has_filename()) final_ = final_.parent_path();
  partial_ = final_.string() + ".partial";
  for (const Path& path : {final_, partial_})
    if (file_system_.exists(path))
      fail(ExitCode::Usage, "error: ", path.string(), " is there already\n  why : ",
           path == final_ ? "nothing is overwritten" : "an earlier start was killed, or still runs",
           "\n  try : another directory, or remove it");
  make_directories(file_system_, partial_);
}

StagedDirectory::~StagedDirectory() {
  if (is_published_) return;
  try {
    remove_tree(file_system_, partial_);
  } catch (const Error&) {
    // The error that brought us here is reported; the next start names what stayed.
  }
}

void StagedDirectory::publish() {
  file_system_.sync_directory(partial_);
  file_system_.rename(partial_, final_);
  is_published_ = true;
  file_system_.sync_directory(final_.parent_path());
}

}  // namespace ferry
