#pragma once

// A process group: collectives over the ranks of one axis of the mesh. Every collective takes a
// stream, enqueues and returns, as a kernel does; the result is ready after an event recorded on
// that stream. All ranks of a group make the same calls in the same order, whatever streams they
// make them on: the collectives of a group run one after the other.
//
//   MpiGroup     host memory; device memory staged through pinned buffers, so several ranks can
//                share one GPU and NCCL is not a must
//   NcclGroup    device memory
//   ThreadGroup  ranks as threads of one process, for tests and ThreadSanitizer
//   SoloGroup    one rank
//
// Sums are made in the dtype of the tensors; their order depends on the number of ranks only, so a
// run is repeatable in the same layout. A collective that does not finish within its deadline, or
// whose peer is gone, throws Error(ExitCode::Lost) naming the group, the operation and the rank.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace ferry {

enum class ReduceOp { Sum, Max };

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// For messages: "dp[0,2]".
  virtual const std::string& name() const = 0;

  /// In place.
  virtual void all_reduce(Stream& stream, const Tensor& tensor, ReduceOp op) = 0;
  /// all [size * n, ...] = the ranks' own [n, ...], in rank order. `own` may be its place in `all`.
  virtual void all_gather(Stream& stream, const Tensor& all, const Tensor& own) = 0;
  /// own [n, ...] = this rank's part of the sum of everybody's all [size * n, ...]. `own` may be
  /// its place in `all`; the rest of `all` is then undefined.
  virtual void reduce_scatter(Stream& stream, const Tensor& own, const Tensor& all) = 0;
  virtual void broadcast(Stream& stream, const Tensor& tensor, int root) = 0;
  /// Rows of dim 0: send_rows[r] consecutive rows of `send` go to rank r; receive_rows[r] rows come
  /// from it, in rank order. Counts may be 0 and are known on the host.
  virtual void all_to_all(Stream& stream, const Tensor& receive,
                          std::span<const int64_t> receive_rows, const Tensor& send,
                          std::span<const int64_t> send_rows) = 0;
  /// A send may wait on its stream for the matching receive. With NCCL the calls of one group
  /// follow each other on the GPU, so a group for each direction keeps two ranks that both send
  /// first from waiting for each other.
  virtual void send(Stream& stream, const Tensor& tensor, int peer) = 0;
  virtual void receive(Stream& stream, const Tensor& tensor, int peer) = 0;

  /// A group of the ranks that give the same color, ordered by rank; every rank must call.
  /// color < 0: this rank is in none, and gets nullptr.
  virtual std::unique_ptr<Group> split(int color, const std::string& name) = 0;

 protected:
  /// What every kind of group demands of the arguments.
  void check_all_gather(const Tensor& all, const Tensor& own) const;
  void check_reduce_scatter(const Tensor& own, const Tensor& all) const;
  void check_all_to_all(const Tensor& receive, std::span<const int64_t> receive_rows,
                        const Tensor& send, std::span<const int64_t> send_rows) const;
};

/// The group of one rank: copies where an output is not the input, else does nothing.
std::unique_ptr<Group> make_solo_group(const std::string& name = "solo");

}  // namespace ferry
