#pragma once

// The paged stash: what the experts save for backward has as many rows as a rank may get at most
// (moe.rank_capacity_factor); between forward and backward only the rows in use are kept, in pages
// of a pool on the device that all layers and micro-batches share, or in pinned pages of the host.
//
// The first training step packs tensors to their exact size, for which the host waits, and measures
// how many rows there are at once; then the pools are made, and everything stays on the device: the
// host learns of numbers of rows, pages and overflow at the end of a step, if it asks. The step is
// measured again when the schedule or a shape changes.
//
//   forward   a record of experts is saved   its tensors are packed, beside the compute stream;
//                                            the next layer's experts wait for that, and its memory
//                                            is free
//   backward  a layer's experts are done     those of the layer below, or of the pass that comes
//                                            back next, are unpacked
//
// One stream packs and unpacks, so pages are taken and returned in the same order each time. If the
// pools are too small, the step's results are worthless and overflow() says so: whoever runs steps
// runs this one again with the stash off.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/ops/pages.h"
#include "offload/activation_mover.h"
#include "offload/stash_plan.h"

namespace ferry {

struct PagedStashConfig {
  int64_t page_tokens = 64;    // rows of a page
  double device_factor = 1.1;  // pages on the device; see num_stash_pages()
  double host_factor = 0.0;    // pages in host memory
  /// Padded rows over balanced rows: moe.rank_capacity_factor, or 1 where one rank has all experts.
  double capacity_factor = 1.0;
};

class PagedStash final : public ActivationMover {
 public:
  PagedStash(Device& device, const PagedStashConfig& config);
  ~PagedStash() override;

  void begin_step(std::span<const PassAction> actions, Stream& compute) override;
  TapePolicy& policy(PassId pass) override;
  void end_step(Stream& compute) override;
  /// Module "paged_stash": the bytes that went to host pages.
  TrafficByModule traffic() const override;

  /// Off: tensors stay where they are, from the next step on.
  void set_enabled(bool enabled) { enabled_ = enabled; }
  /// I32 [1], above 0 if the step took more pages than there are, or used pages of the host. Valid
  /// on the compute stream from end_step() to the next begin_step().
  Tensor overflow() const { return flags_.rows(kStashOverflow, kStashOverflow + 1); }
  Tensor spilled() const { return flags_.rows(kStashSpilled, kStashSpilled + 1); }
  /// Made by the first step after one that was measured.
  const std::map<PoolKey, PagePool>& pools() const { return pools_; }

 private:
  class Pass;
  struct PagedTensor;
  class PagedResidence;
  enum class Mode { Off, Measure, Stash };
  struct Packing {
    Tensor tensor;  // kept until its rows are in pages
    Event done;
  };
  struct Wait {
    std::shared_ptr<const TimeStamp> begin, end;
  };

  void make_pools();
  std::shared_ptr<PagedTensor> pack(Stream& compute, const Tensor& tensor, const PagePool& pool,
                                    const Tensor& num_rows, Label label);
  void unpack(Stream& compute, std::span<const std::shared_ptr<PagedTensor>> tensors);
  /// Unpacks the newest group of the pass that goes back after `action`, if one does.
  void unpack_after(const PassAction& action, Stream& compute);
  /// `compute` waits until all tensors so far are in pages, and their memory is free.
  void join(Stream& compute);
  void wait(Stream& compute, const Event& event);

  PagedStashConfig config_;
  std::unique_ptr<Stream> stream_;  // packs and unpacks
  Tensor flags_;                    // [kNumStashFlags] I32
  bool enabled_ = true;
  Mode mode_ = Mode::Off;
  bool measured_ = false;
  std::vector<PassAction> actions_;
  StashedPasses passes_;  // of the measured step
  std::map<PoolKey, PagePool> pools_;
  std::map<PassId, std::unique_ptr<TapePolicy>> running_;
  std::vector<Packing> packing_;
  std::vector<Wait> waits_;
};

}  // namespace ferry
