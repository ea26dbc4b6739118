#pragma once

// What the memory of the host gives to loops that do almost no arithmetic: the ceilings of the
// optimizer's work on the host, measured with the vectors and the order of access of core/ops.

#include "core/tensor.h"

namespace ferry {

/// The memory of one update of BF16 values with FP32 state, all in host memory and of one length.
struct UpdateArrays {
  Tensor value;
  Tensor master;
  Tensor exp_avg;
  Tensor exp_avg_sq;
  Tensor grad;

  /// Error(ExitCode::Resource) if the device cannot give so much host memory. Contents undefined.
  static UpdateArrays allocate(Device& device, int64_t elements);
  int64_t size() const { return value.numel(); }
  UpdateArrays part(int64_t begin, int64_t end) const;
  /// Numbers such as an update has, those of elements [first, first + size()) of a long array.
  void fill(int64_t first) const;
};

/// Bytes of one element of all arrays.
inline constexpr int64_t kUpdateArrayBytes = 18;

enum class HostLoop {
  Read,           // all four FP32 arrays
  Copy,           // exp_avg to grad
  Triad,          // exp_avg + s * exp_avg_sq to grad
  AdamwPattern,   // all that adamw reads and writes, unchanged but for the value
  AdamwOrdinary,  // the same with stores of the value that go through the cache
  SgdPattern,     // the same for sgd, with exp_avg as its momentum
};

/// "read", "adamw pattern".
const char* name_of(HostLoop loop);
/// Read and written, each array once: what an ordinary store reads first does not count.
int64_t bytes_per_element(HostLoop loop);
/// By the calling thread, with the vectors of vector_level().
void run_host_loop(HostLoop loop, const UpdateArrays& arrays);

}  // namespace ferry
