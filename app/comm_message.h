#pragma once

// One kind of communication of one size, with numbers whose result is known: what ferry bench comm
// times, and checks before that.
//
// Numbers are small integers, few enough bits that sums over the ranks are exact in every dtype;
// every rank can compute those of all others. They repeat after about a million, so that long
// messages are filled and checked, every element, at the rate of copies. Sizes are counted as
// NCCL's tests count them: `bytes` is the larger one of a rank's input and output.

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/group.h"
#include "pipeline/links.h"

namespace ferry {

enum class CommKind { AllReduce, AllGather, ReduceScatter, AllToAll, PointToPoint };
const char* name_of(CommKind kind);

/// Bytes that the slowest link carries one way, over the bytes of the message: 2 (n - 1) / n for an
/// all-reduce of n ranks, 1 from neighbour to neighbour, else (n - 1) / n. The method of NCCL's
/// tests, whose "bus bandwidth" it makes comparable with the rate of a link.
double bus_factor(CommKind kind, int num_ranks);

class CommMessage {
 public:
  /// At most `bytes`, in equal parts for the ranks of `world`, but at least one element each.
  /// `ring` joins the ranks of `world` with two chunks a rank, so that the last one is before the
  /// first. All must outlive this; work is enqueued on `stream`.
  CommMessage(CommKind kind, int64_t bytes, DType dtype, Stream& stream, Group& world,
              const PipelineLinks& ring);

  CommKind kind() const { return kind_; }
  DType dtype() const { return input_.dtype(); }
  int64_t bytes() const { return part_ * world_.size() * static_cast<int64_t>(size_of(dtype())); }

  /// Gives the input the numbers of `seed`, the same on all ranks. Waits for the stream.
  void fill(uint64_t seed);
  /// What works in place gets its input again. Before the first enqueue() and between any.
  void restore();
  /// Enqueues the communication. Every rank.
  void enqueue();
  /// After fill(seed), restore() and one enqueue(): waits, and throws Error(ExitCode::Internal)
  /// that names the first wrong element.
  void check(uint64_t seed);

 private:
  // A stretch of the output: the sum of elements [source, source + count) of the inputs of ranks
  // [first_rank, end_rank).
  struct Stretch {
    int64_t begin, count;
    int first_rank, end_rank;
    int64_t source;
  };
  std::vector<Stretch> expected() const;
  Tensor period(uint64_t seed, int first_rank, int end_rank) const;
  void compare(int64_t begin, const Tensor& got, const Tensor& wanted) const;
  void enqueue_ring();

  CommKind kind_;
  Stream& stream_;
  Group& world_;
  const PipelineLinks& ring_;
  int64_t part_;  // elements for each rank
  Tensor input_, output_;
  std::vector<int64_t> part_of_rank_;
};

}  // namespace ferry
