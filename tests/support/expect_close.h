#pragma once

// Comparison of tensors with a failure message that says where and how far.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <source_location>
#include <vector>

#include "core/host_copy.h"
#include "core/tensor.h"

namespace ferry::testing {

/// Each |actual - expected| <= abs + rel * |expected|. Equal infinities are close; a NaN is close
/// to nothing. Reports the first bad index, its values, how many are bad, and the largest error.
inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                         double rel, double abs,
                         std::source_location where = std::source_location::current()) {
  const int line = static_cast<int>(where.line());
  if (actual.size() != expected.size()) {
    ADD_FAILURE_AT(where.file_name(), line)
        << actual.size() << " elements, expected " << expected.size();
    return;
  }
  size_t num_bad = 0, first_bad = 0, worst = 0;
  double worst_excess = -1;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    const double error = std::abs(actual[i] - expected[i]);
    const double allowed = abs + rel * std::abs(expected[i]);
    if (error <= allowed) continue;
    if (num_bad++ == 0) first_bad = i;
    const double excess = std::isnan(error) ? INFINITY : error;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  if (num_bad == 0) return;
  ADD_FAILURE_AT(where.file_name(), line)
      << num_bad << " of " << actual.size() << " elements differ by more than " << abs << " + "
      << rel << " * |expected|\n  first at " << first_bad << ": actual " << actual[first_bad]
      << ", expected " << expected[first_bad] << "\n  worst at " << worst << ": actual "
      << actual[worst] << ", expected " << expected[worst] << ", error " << worst_excess;
}

/// Both tensors are read on `stream`, which must reach them.
inline void expect_close(Stream& stream, const Tensor& actual, const Tensor& expected, double rel,
                         double abs, std::source_location where = std::source_location::current()) {
  EXPECT_EQ(concat(actual.shape()), concat(expected.shape()));
  expect_close(read_back_as_double(stream, actual), read_back_as_double(stream, expected), rel, abs,
               where);
}

/// Equal bit for bit, NaNs included.
inline void expect_same_bits(Stream& stream, const Tensor& actual, const Tensor& expected,
                             std::source_location where = std::source_location::current()) {
  const auto bytes = [&](const Tensor& tensor) {
    const Tensor host = Tensor::host(stream.device(), "read back", tensor.shape(), tensor.dtype());
    stream.copy(host, tensor);
    stream.record().wait_host();
    const auto* data = static_cast<const unsigned char*>(host.raw());
    return std::vector<unsigned char>(data, data + host.bytes());
  };
  EXPECT_EQ(concat(actual.shape()), concat(expected.shape()));
  EXPECT_EQ(actual.dtype(), expected.dtype());
  const auto a = bytes(actual), b = bytes(expected);
  if (a == b) return;
  const size_t at =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
      << "bits differ, first in element " << at / size_of(actual.dtype());
}

}  // namespace ferry::testing
