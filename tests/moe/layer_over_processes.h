#pragma once

// A MoE layer on the ranks of an MPI job against the same layer on one rank.

#include <algorithm>
#include <string>
#include <vector>

#include "tests/moe/layer_over_ranks.h"
#include "tests/support/mpi_runtime.h"

namespace ferry::testing {

/// What put_together makes of all ranks, on every rank. Each rank's rows lie at its place.
inline Outcome put_together(Group& group, const RankResult& own) {
  const auto host = make_cpu_device();
  const auto stream = host->make_stream("sums");
  const auto size = static_cast<size_t>(group.size()), index = static_cast<size_t>(group.rank());
  Outcome whole;
  for (const auto& [name, values] : put_together({own}).tensors) {
    std::vector<double> all = values;
    if (name == "y" || name == "dx") {
      all.assign(size * values.size(), 0);
      std::copy(values.begin(), values.end(),
                all.begin() + static_cast<std::ptrdiff_t>(index * values.size()));
    }
    const Tensor sum = from_host(*stream, "sum", all, {static_cast<int64_t>(all.size())});
    group.all_reduce(*stream, sum, ReduceOp::Sum);
    whole.tensors[name] = read_back<double>(*stream, sum);
  }
  return whole;
}

/// All ranks: each dispatcher, with experts dealt out and cut, and tokens of a micro-batch cut.
/// `group` is the one whose parts the layer uses.
inline void expect_same_over_processes(Device& device, Group& group, DType dtype,
                                       double tolerance) {
  const int size = group.size();
  const auto sums = mpi_runtime().world_group();
  for (const MoeLayout& layout : {MoeLayout{1, size, 1}, {1, size / 2, 2}, {2, size, 1}}) {
    const MoeRank rank(group, layout);  // once: some kinds of groups take seconds to make
    for (const char* dispatcher : {"alltoall", "allgather"}) {
      for (const char* mode : {"none", "all_to:[2,3]"}) {
        const MoeCase c{.dispatcher = dispatcher,
                        .shared_ffn = 16,
                        .shared_gate = true,
                        .force_routing = mode,
                        .dtype = dtype};
        SCOPED_TRACE(concat(layout, "; ", c));
        WholeValues values;
        const Outcome one = run_on_one_rank(c, size / layout.tp, values);
        expect_near(put_together(*sums, run_on_rank(device, c, rank, values)), one, tolerance);
      }
    }
  }
}

}  // namespace ferry::testing
