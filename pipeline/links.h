#pragma once

// Messages between the neighbours of a pipeline. A rank has up to four links: activations from the
// rank before and to the rank behind, gradients from behind and to before. Each has a group of its
// own (its two ranks) and a stream of its own, so that no message waits for one that it does not
// depend on. With several chunks per rank, the last rank is also before the first.

#include <memory>
#include <vector>

#include "core/comm/group.h"

namespace ferry {

/// One end of a channel.
struct PipelineLink {
  std::unique_ptr<Group> group;
  int peer = 0;                    // in the group
  std::unique_ptr<Stream> stream;  // after the group, which its work uses
};

class PipelineLinks {
 public:
  /// Every rank of `pp` must call it, with the same `num_chunks`. Passes one byte over every link
  /// and waits for it: some networks connect at the first message, and stop the host for that until
  /// both ends call. Keeps neither `pp` nor a reference to it; `device` must outlive it.
  PipelineLinks(Group& pp, Device& device, int num_chunks);
  /// Every rank must come to this, too.
  ~PipelineLinks();
  PipelineLinks(const PipelineLinks&) = delete;
  PipelineLinks& operator=(const PipelineLinks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int num_chunks() const { return num_chunks_; }

  /// nullptr where there is no such neighbour, or where it is the rank itself.
  const PipelineLink* activations_in() const { return activations_in_; }
  const PipelineLink* activations_out() const { return activations_out_; }
  const PipelineLink* gradients_in() const { return gradients_in_; }
  const PipelineLink* gradients_out() const { return gradients_out_; }

 private:
  int rank_;
  int size_;
  int num_chunks_;
  std::vector<std::unique_ptr<PipelineLink>> links_;  // in the order in which all ranks made them
  const PipelineLink* activations_in_ = nullptr;
  const PipelineLink* activations_out_ = nullptr;
  const PipelineLink* gradients_in_ = nullptr;
  const PipelineLink* gradients_out_ = nullptr;
};

}  // namespace ferry
