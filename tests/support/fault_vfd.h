#pragma once

// An HDF5 virtual file driver that forwards to the library's own POSIX driver and misbehaves at a
// chosen operation: open, read, write, truncate, flush or close.

#include <hdf5.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ferry::testing {

enum class VfdFault {
  None,
  Fail,   // the operation does nothing and reports an error; a close does close
  Short,  // as Fail, but half of the bytes of a write are in the file
  Delay,  // the operation is made after `delay`
  Kill,   // SIGKILL instead of the operation; half of the bytes of a write are in the file
};

struct VfdPlan {
  VfdFault fault = VfdFault::None;
  int at = -1;  // which operation of all files, from 0; -1 for every one
  std::chrono::milliseconds delay{0};
};

/// The driver is one per process, so is what it shall do. Not for use by two threads at a time.
class FaultVfd {
 public:
  /// From now on: which operation fails, and how. Forgets earlier operations.
  static void plan(const VfdPlan& next) {
    plan_ = next;
    operations_.clear();
  }
  /// What has happened since, in order: "open", "read", "write" ...
  static const std::vector<std::string>& operations() { return operations_; }

  /// Makes files that are created or opened with this access list use the driver.
  static void use(hid_t access) {
    static const hid_t driver = H5FDregister(&driver_class());
    if (driver < 0 || H5Pset_driver(access, driver, nullptr) < 0) {
      throw std::runtime_error("HDF5 does not take the driver");
    }
  }

 private:
  struct File {
    H5FD_t driver{};  // must be first: the library fills it in
    H5FD_t* posix = nullptr;
  };
  static H5FD_t* posix(const H5FD_t* file) { return reinterpret_cast<const File*>(file)->posix; }

  /// Counts an operation; false if it has to fail.
  static bool step(const char* name) {
    const int now = static_cast<int>(operations_.size());
    operations_.push_back(name);
    if (plan_.at >= 0 && plan_.at != now) return true;
    if (plan_.fault == VfdFault::Delay) std::this_thread::sleep_for(plan_.delay);
    if (plan_.fault == VfdFault::Kill) ::raise(SIGKILL);
    return plan_.fault != VfdFault::Fail && plan_.fault != VfdFault::Short;
  }

  static bool is_torn() {
    return plan_.at == static_cast<int>(operations_.size()) &&
           (plan_.fault == VfdFault::Short || plan_.fault == VfdFault::Kill);
  }

  static H5FD_t* open(const char* name, unsigned flags, hid_t, haddr_t max_address) {
    if (!step("open")) return nullptr;
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    auto file = std::make_unique<File>();
    if (H5Pset_fapl_sec2(access) >= 0) {
      file->posix = H5FDopen(name, flags, access, max_address);
    }
    H5Pclose(access);
    if (file->posix == nullptr) return nullptr;
    return &file.release()->driver;
  }

  static herr_t close(H5FD_t* driver) {
    const std::unique_ptr<File> file(reinterpret_cast<File*>(driver));
    const bool succeeds = step("close");
    const herr_t status = H5FDclose(file->posix);
    return succeeds ? status : -1;
  }

  static herr_t read(H5FD_t* file, H5FD_mem_t type, hid_t transfer, haddr_t address, size_t bytes,
                     void* buffer) {
    return step("read") ? H5FDread(posix(file), type, transfer, address, bytes, buffer) : -1;
  }

  static herr_t write(H5FD_t* file, H5FD_mem_t type, hid_t transfer, haddr_t address, size_t bytes,
                      const void* buffer) {
    if (is_torn() && bytes > 1 &&
        H5FDwrite(posix(file), type, transfer, address, bytes / 2, buffer) < 0) {
      return -1;
    }
    return step("write") ? H5FDwrite(posix(file), type, transfer, address, bytes, buffer) : -1;
  }

  static herr_t flush(H5FD_t* file, hid_t transfer, hbool_t closing) {
    return step("flush") ? H5FDflush(posix(file), transfer, closing) : -1;
  }
  static herr_t truncate(H5FD_t* file, hid_t transfer, hbool_t closing) {
    return step("truncate") ? H5FDtruncate(posix(file), transfer, closing) : -1;
  }

  // What only asks or remembers.
  static int compare(const H5FD_t* a, const H5FD_t* b) { return H5FDcmp(posix(a), posix(b)); }
  static herr_t query(const H5FD_t* file, unsigned long* flags) {
    constexpr unsigned long kPosixDriver =
        H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
        H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_POSIX_COMPAT_HANDLE | H5FD_FEAT_SUPPORTS_SWMR_IO |
        H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    if (file == nullptr) {  // asked of the driver itself
      *flags = kPosixDriver;
      return 0;
    }
    return H5FDquery(posix(file), flags) < 0 ? -1 : 0;
  }
  static haddr_t end_of_space(const H5FD_t* file, H5FD_mem_t type) {
    return H5FDget_eoa(posix(file), type);
  }
  static herr_t set_end_of_space(H5FD_t* file, H5FD_mem_t type, haddr_t address) {
    return H5FDset_eoa(posix(file), type, address);
  }
  static haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t type) {
    return H5FDget_eof(posix(file), type);
  }
  static herr_t handle(H5FD_t* file, hid_t access, void** result) {
    return H5FDget_vfd_handle(posix(file), access, result);
  }

  static const H5FD_class_t& driver_class() {
    constexpr haddr_t kLargestOffset = (haddr_t{1} << 63) - 1;  // off_t
    static const H5FD_class_t driver = {.name = "fault",
                                        .maxaddr = kLargestOffset,
                                        .fc_degree = H5F_CLOSE_WEAK,
                                        .open = open,
                                        .close = close,
                                        .cmp = compare,
                                        .query = query,
                                        .get_eoa = end_of_space,
                                        .set_eoa = set_end_of_space,
                                        .get_eof = end_of_file,
                                        .get_handle = handle,
                                        .read = read,
                                        .write = write,
                                        .flush = flush,
                                        .truncate = truncate,
                                        .fl_map = H5FD_FLMAP_DICHOTOMY};
    return driver;
  }

  static inline VfdPlan plan_;
  static inline std::vector<std::string> operations_;
};

}  // namespace ferry::testing
