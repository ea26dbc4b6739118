#pragma once

// The HDF5 C API with owned handles and readable errors, and the property lists that make files
// reproducible: superblock 3 (low and high bound 1.10), no times in object headers, no file locks,
// no plug-ins. Only files of our own are created; nothing here opens a file for reading.

#include <hdf5.h>

#include <mutex>
#include <string>

#include "checkpoint/file_system.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace ferry {

/// An HDF5 identifier that is closed when it goes out of scope.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Handle() = default;
  /// Takes the result of a call that creates; a negative one throws and names `what`.
  Hdf5Handle(hid_t id, Close close, const std::string& what);
  Hdf5Handle(Hdf5Handle&& other) noexcept;
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;
  ~Hdf5Handle();
  operator hid_t() const { return id_; }
  /// Closes now and reports a failure, its own or one that destructors have met since the file was
  /// created: they cannot throw, so whoever writes a file ends with close() of the file.
  void close(const std::string& what);

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// Throws Error(Storage) with the library's own reason if `status` is negative.
void require_hdf5(herr_t status, const std::string& what);

/// "1.10.8": of the library that is loaded.
std::string hdf5_version();

/// Held during every use of the library, so that a build of it without thread safety does as well.
std::unique_lock<std::mutex> lock_hdf5();

/// Overwrites `path`, which must exist: the caller created it and keeps a descriptor for the sync.
Hdf5Handle create_hdf5_file(const Path& path);

/// For tests: may change the file access list of every file created from now on, to put another
/// driver under the library. Null for none. Not to be set while files are created.
using Hdf5AccessHook = void (*)(hid_t access);
void set_hdf5_access_hook(Hdf5AccessHook hook);

/// The little-endian file type of a dtype. BF16 is committed as /types/bfloat16 on first use.
Hdf5Handle element_type(hid_t file, DType dtype);

/// Makes the groups above `name` ("a/b/c" needs a and a/b).
void make_parent_groups(hid_t file, const std::string& name);
Hdf5Handle make_dataspace(const Shape& shape);
/// A dataset creation list without times. The caller adds the layout.
Hdf5Handle dataset_properties();
Hdf5Handle string_type();

}  // namespace ferry
