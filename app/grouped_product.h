#pragma once

// One product of an expert layer and its operands, as ferry bench gemm measures it: R rows in E
// groups, x [R, K], y [R, N], weight [E, N, K] (see core/ops/grouped_gemm.h).

#include <cstdint>
#include <string>
#include <vector>

#include "core/ops/grouped_gemm.h"

namespace ferry {

enum class GroupedPass { Forward, Dgrad, Wgrad };

struct GroupedProduct {
  GroupedPass pass = GroupedPass::Forward;
  std::string name;             // for people: "fc1 forward, uneven"
  Tensor y;                     // written by Forward, else the gradient that is read
  Tensor x;                     // written by Dgrad, else read
  Tensor weight;                // Wgrad adds to it: in accumulate_dtype there
  std::vector<int64_t> counts;  // rows of each group; their sum is R
  Tensor h = {}, prob = {};     // Forward: if defined, also h = SwiGLU of y, with prob [R]
  Tensor slot_of_row = {};      // if defined, x is tokens in place: Wgrad, and Forward with SwiGLU

  const Tensor& output() const;
  int64_t num_groups() const { return weight.dim(0); }
  Rows rows() const { return {x, slot_of_row}; }
  /// Multiplications and additions of one call, without those of SwiGLU.
  double flops() const;
  /// counts as the ops want them: [E+1] I32 on the stream's device.
  Tensor offsets(Stream& stream) const;

  void enqueue(Stream& stream, const Tensor& offsets) const;
  /// The same with R / E rows in each group, as one batch of dense products: of rows in their
  /// order, and without SwiGLU.
  void enqueue_batched(Stream& stream) const;
};

}  // namespace ferry
