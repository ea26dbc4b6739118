#pragma once

// After a distributed update each rank has new values for the rows that it owns: this brings
// everybody's rows to all ranks of each parameter's group, on a stream of its own. With overlap the
// next forward begins at once, and waits before each block for the block's values. Where the store
// makes its updates later, a block's gather is enqueued no sooner than that forward needs it.

#include <memory>
#include <vector>

#include "core/module.h"
#include "optim/reduce_groups.h"
#include "optim/state_store.h"

namespace ferry {

class ParamGather final : public BlockHooks {
 public:
  /// `blocks` (of all chunks of this rank, in the order of forward; parameters have memory) and the
  /// groups outlive this.
  ParamGather(const std::vector<std::vector<Parameter*>>& blocks, const ReduceGroups& groups,
              Device& device, bool overlap);

  /// After the update of `store`, which outlives this, on its stream. Without overlap, `compute`
  /// waits for all values at once.
  void start(Stream& compute, StateStore& store);
  /// Makes pass.stream, which is always the same one, wait for the block's values.
  void before_forward(Pass& pass, int block_idx) override;
  /// Makes any stream wait for all values: for readers that do not call before_forward.
  void wait_all(Stream& stream);

 private:
  struct Gather {
    Parameter* parameter;
    Group* group;
    size_t block;
  };
  void gather(const Gather& gather);
  /// Enqueues the gathers of blocks before `end`.
  void gather_until(size_t end);

  std::unique_ptr<Stream> stream_;
  // Where the group has more than one rank. Tied parameters first of all: the first stage needs
  // them at its beginning, and the last stage takes part.
  std::vector<Gather> tied_;
  std::vector<std::vector<Gather>> blocks_;
  std::vector<Event> ready_;  // of each block; reset once it was waited for
  size_t num_gathered_;       // blocks
  StateStore* store_ = nullptr;
  bool has_gathers_ = false;
  bool overlap_;
};

}  // namespace ferry
