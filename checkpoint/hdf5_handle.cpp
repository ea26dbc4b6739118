#include "checkpoint/hdf5_handle.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/check.h"

namespace ferry {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

Hdf5AccessHook access_hook = nullptr;

/// The reason of the first close that failed in a destructor, until it is reported. Data that the
/// library still held back may be lost by it: a dataset's last bytes are written when it is closed.
thread_local std::string failed_close;

herr_t add_reason(unsigned, const H5E_error2_t* error, void* text) {
  auto& reasons = *static_cast<std::string*>(text);
  if (error->desc != nullptr) reasons += (reasons.empty() ? "" : "; ") + std::string(error->desc);
  return 0;
}

std::string library_reason() {
  std::string reasons;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, add_reason, &reasons);
  return reasons.empty() ? "no reason given" : reasons;
}

/// Once per process: errors become text of exceptions, and no plug-in is ever loaded.
void prepare_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Else a file whose close failed is closed again at exit, which ends in a crash. Fails where
    // somebody used HDF5 before: then that is as it is.
    static_cast<void>(H5dont_atexit());
    require_hdf5(H5open(), "start HDF5");
    require_hdf5(H5PLset_loading_state(0), "switch off HDF5 plug-ins");
  });
  require_hdf5(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "silence HDF5");  // is per thread
}

Hdf5Handle property_list(hid_t list_class) {
  return {H5Pcreate(list_class), H5Pclose, "create an HDF5 property list"};
}

Hdf5Handle untimed(hid_t list_class) {
  Hdf5Handle list = property_list(list_class);
  require_hdf5(H5Pset_obj_track_times(list, false), "switch off HDF5 object times");
  return list;
}

bool link_exists(hid_t file, const std::string& name) {
  const htri_t found = H5Lexists(file, name.c_str(), H5P_DEFAULT);
  require_hdf5(found, "look up " + name);
  return found > 0;
}

/// The upper half of an IEEE float. The fields are moved before the precision is cut, because they
/// must fit at every moment.
Hdf5Handle bfloat16_type() {
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "copy an HDF5 type");
  require_hdf5(H5Tset_fields(type, 15, 7, 8, 0, 7), "define bfloat16");
  require_hdf5(H5Tset_precision(type, 16), "define bfloat16");
  require_hdf5(H5Tset_size(type, 2), "define bfloat16");
  require_hdf5(H5Tset_ebias(type, 127), "define bfloat16");
  return type;
}

}  // namespace

Hdf5Handle::Hdf5Handle(hid_t id, Close close, const std::string& what) : id_(id), close_(close) {
  require_hdf5(id < 0 ? -1 : 0, what);
}

Hdf5Handle::Hdf5Handle(Hdf5Handle&& other) noexcept
    : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}

Hdf5Handle& Hdf5Handle::operator=(Hdf5Handle&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  return *this;
}

Hdf5Handle::~Hdf5Handle() {
  if (id_ >= 0 && close_(id_) < 0 && failed_close.empty()) failed_close = library_reason();
}

void Hdf5Handle::close(const std::string& what) {
  const herr_t status = close_(std::exchange(id_, H5I_INVALID_HID));
  const std::string earlier = std::exchange(failed_close, "");
  require_hdf5(status, what);
  if (!earlier.empty()) {
    throw Error(ExitCode::Storage,
                fmt::format("cannot {}: HDF5 said of a part of it: {}", what, earlier));
  }
}

void require_hdf5(herr_t status, const std::string& what) {
  if (status < 0) {
    throw Error(ExitCode::Storage, fmt::format("cannot {}: HDF5 says: {}", what, library_reason()));
  }
}

std::string hdf5_version() {
  const auto lock = lock_hdf5();
  prepare_library();
  unsigned major = 0, minor = 0, release = 0;
  require_hdf5(H5get_libversion(&major, &minor, &release), "ask HDF5 for its version");
  return fmt::format("{}.{}.{}", major, minor, release);
}

std::unique_lock<std::mutex> lock_hdf5() {
  static std::mutex mutex;
  return std::unique_lock(mutex);
}

Hdf5Handle create_hdf5_file(const Path& path) {
  prepare_library();
  failed_close.clear();  // of a file that was given up
  const std::string what = "set up the HDF5 file " + path.native();
  const Hdf5Handle access = property_list(H5P_FILE_ACCESS);
  require_hdf5(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110), what);
  // The directory is private until it is published, and some file systems refuse locks.
  require_hdf5(H5Pset_file_locking(access, false, true), what);
  // Closing with an object still open is an error, not a delayed close.
  require_hdf5(H5Pset_fclose_degree(access, H5F_CLOSE_SEMI), what);
  // Large slices begin at multiples of 4 MiB, the stripe of parallel file systems; for smaller ones
  // the gaps would outweigh the gain.
  require_hdf5(H5Pset_alignment(access, 16 * kMiB, 4 * kMiB), what);
  if (access_hook != nullptr) access_hook(access);
  const Hdf5Handle creation = untimed(H5P_FILE_CREATE);
  return {H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access), H5Fclose, what};
}

void set_hdf5_access_hook(Hdf5AccessHook hook) { access_hook = hook; }

Hdf5Handle element_type(hid_t file, DType dtype) {
  const std::string what = concat("find the HDF5 type of ", name_of(dtype));
  switch (dtype) {
    case DType::F32:
      return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose, what};
    case DType::F64:
      return {H5Tcopy(H5T_IEEE_F64LE), H5Tclose, what};
    case DType::I32:
      return {H5Tcopy(H5T_STD_I32LE), H5Tclose, what};
    case DType::I64:
      return {H5Tcopy(H5T_STD_I64LE), H5Tclose, what};
    case DType::U8:
      return {H5Tcopy(H5T_STD_U8LE), H5Tclose, what};
    case DType::BF16:
      break;
  }
  const std::string name = "types/bfloat16";
  if (!link_exists(file, "types")) {
    make_parent_groups(file, name);
    const Hdf5Handle type = bfloat16_type();
    const Hdf5Handle creation = untimed(H5P_DATATYPE_CREATE);
    require_hdf5(H5Tcommit2(file, name.c_str(), type, H5P_DEFAULT, creation, H5P_DEFAULT), what);
  }
  return {H5Topen2(file, name.c_str(), H5P_DEFAULT), H5Tclose, what};
}

void make_parent_groups(hid_t file, const std::string& name) {
  // One by one: the library's own intermediate groups carry times.
  for (size_t end = name.find('/'); end != std::string::npos; end = name.find('/', end + 1)) {
    const std::string group = name.substr(0, end);
    if (link_exists(file, group)) continue;
    const Hdf5Handle creation = untimed(H5P_GROUP_CREATE);
    Hdf5Handle(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, creation, H5P_DEFAULT), H5Gclose,
               "create the HDF5 group " + group)
        .close("close the HDF5 group " + group);
  }
}

Hdf5Handle make_dataspace(const Shape& shape) {
  std::array<hsize_t, Shape::kMaxRank> dims{};
  for (int d = 0; d < shape.rank(); ++d)
    dims[static_cast<size_t>(d)] = static_cast<hsize_t>(shape[d]);
  return {H5Screate_simple(shape.rank(), dims.data(), nullptr), H5Sclose,
          "create an HDF5 dataspace"};
}

Hdf5Handle dataset_properties() { return untimed(H5P_DATASET_CREATE); }

Hdf5Handle string_type() {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose, "copy an HDF5 type");
  require_hdf5(H5Tset_size(type, H5T_VARIABLE), "define a string type");
  require_hdf5(H5Tset_cset(type, H5T_CSET_UTF8), "define a string type");
  return type;
}

}  // namespace ferry
