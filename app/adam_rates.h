#pragma once

// The rates of ferry bench adam, without the command around them.

#include <string>
#include <vector>

#include "app/backend.h"
#include "app/bench.h"
#include "app/host_loops.h"

namespace ferry {

/// A loop over all elements, with a number of threads.
struct AdamRow {
  std::string name;
  std::string vectors;  // "avx512"; empty on the GPU
  int threads = 0;      // 0 on the GPU
  int64_t elements = 0;
  int64_t bytes_per_element = 0;  // read and written, each array once
  bool is_update = false;         // its elements are parameters
  CallTimes times = {};
  double ceiling = 0;  // bytes/s
  double d2h = 0;      // bytes/s of the copies beside it; 0 without
  double h2d = 0;

  double elements_per_s() const { return static_cast<double>(elements) / times.median; }
  double rate() const { return elements_per_s() * static_cast<double>(bytes_per_element); }
};

struct AdamRates {
  std::vector<AdamRow> rows;
  double read = 0;  // bytes/s, with the number of threads that reached most
  double copy = 0;
  double triad = 0;
};

/// Compares all levels with the portable loop, then measures what bench_adam (app/bench.h) says, on
/// the CPUs that this thread may use and the backend's GPU. Error(ExitCode::Internal) if a level
/// gives other bits.
AdamRates measure_adam(Backend& backend, int64_t elements);

/// Elements (UpdateArrays) of four times the last-level cache (0: not known), so that nothing of
/// one loop is there for the next, but at most a quarter of the free memory; at least 1.
int64_t chosen_elements(int64_t cache_bytes, int64_t free_bytes);

}  // namespace ferry
