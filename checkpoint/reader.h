#pragma once

// Reads checkpoints. The manifest is the only authority: tensors are read straight from the places
// it records, so neither HDF5 nor global.h5 takes part, and every byte is checked against its
// digest before anybody uses it.

#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/slice.h"

namespace ferry {

struct LoadReport {
  int64_t bytes = 0;  // filled in the caller's memory
  double seconds = 0;
};

/// A published checkpoint whose manifest is valid and whose files have the right sizes. Its methods
/// only read; several threads may use one object.
class Checkpoint {
 public:
  /// Throws Error(Storage) saying what is missing or damaged. `file_system` must outlive the
  /// object.
  static Checkpoint open(const Path& directory, FileSystem& file_system = posix_file_system());

  const Path& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  const State& state() const { return manifest_.state; }
  int64_t step() const { return manifest_.step; }
  std::string root() const { return root_digest(manifest_); }

  /// Fills every element of every slice. Throws Error(Storage) if a tensor is absent or of another
  /// dtype or shape, or if bytes do not match their digests; memory is then partly written. Reads
  /// every chunk that has some of it once, on `num_threads` threads or as many as choose_io_threads
  /// says, each of which has memory for one chunk. Of several damages the first one is named, by
  /// file and place in it.
  LoadReport load(std::span<const SliceToLoad> slices, int num_threads = 0) const;

  /// Checks every byte of one file. `from_device` drops cached pages first. Adds the parts of
  /// tensor digests that lie in the file to `sums` (one per tensor of the manifest) unless it is
  /// null. Threads, memory and errors as for load.
  void verify_file(int file_idx, bool from_device, std::vector<Digest128>* sums,
                   int num_threads = 0) const;
  /// Checks every byte of all files, and computes all tensor digests again.
  void verify() const;

 private:
  Checkpoint(Path directory, Manifest manifest, FileSystem& file_system)
      : directory_(std::move(directory)),
        manifest_(std::move(manifest)),
        file_system_(&file_system) {}
  Path path_of(int file_idx) const;
  const StoredTensor& find(const SliceToLoad& slice) const;

  Path directory_;
  Manifest manifest_;
  FileSystem* file_system_;
};

}  // namespace ferry
