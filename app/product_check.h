#pragma once

// Whether a product that is to be timed is right: some of its elements are computed again on the
// host, in FP64, from the operands' own values. Rows in place are checked against copies of them.

#include <cstdint>
#include <string_view>
#include <vector>

#include "app/grouped_product.h"
#include "core/rng.h"

namespace ferry {

class ProductCheck {
 public:
  /// Overwrites the output: with NaN, or for Wgrad, which adds to it, with random numbers. Chooses
  /// `num_random` elements anywhere and one in the first and in the last row of every group (of
  /// every matrix for Wgrad), all by `key`, and reads what Wgrad will add to. Call before the
  /// product. The product must outlive the check.
  ProductCheck(Stream& stream, const GroupedProduct& product, const RandomKey& key,
               int64_t num_random = 256);

  /// Call after the product: Error(ExitCode::Internal) that names product, element, both values
  /// and the seed if one is further off than roundings explain: half a step of the output's dtype,
  /// and steps of accumulate_dtype by the number of terms n: 4 + n / 16 + 2 sqrt(n), each of the
  /// size of the partial sums: |sum| + the root of the sum of the terms' squares. SwiGLU is
  /// computed again from the gate g and the up that the product wrote, beside which it may be off
  /// by 8 + 2 |g| steps of accumulate_dtype: those of exp(-g). Waits for the stream.
  void expect_right() const;

 private:
  // An element of the output as a matrix: rows count on through the groups, or, for Wgrad, through
  // their matrices.
  struct Element {
    int64_t group;
    int64_t row;
    int64_t column;
    double before;  // what the product adds to
  };
  struct Expected {
    double value;
    double tolerance;  // of a sum: before it is rounded to the output's dtype
  };
  void expect_near(std::string_view what, const Element& element, double actual,
                   const Expected& expected) const;
  std::vector<int64_t> output_rows() const;
  void choose(int64_t num_random);
  std::vector<double> read_elements() const;
  void expect_right_swiglu() const;
  std::vector<Expected> expected() const;

  Stream& stream_;
  const GroupedProduct& product_;
  RandomKey key_;
  Tensor output_;                  // as a matrix
  std::vector<Element> elements_;  // by group
};

}  // namespace ferry
