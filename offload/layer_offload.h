#pragma once

// Layer offload: all that the first layers of the model save for backward waits in host memory,
// small tensors included. It excludes pipelines, recomputation and the other movers, so a rank has
// one chunk, and its layer l is block l + 1 of the hooks.
//
//   forward   a layer is done, and the next one saved its first record   it starts to leave
//   backward  a block begins                                             the layer below starts
//   back
//
// A tensor that the first record of the next block saves, too, is that block's. Device memory of a
// layer that left is let go as late as the peak allows: with N of L layers away, L - N are on the
// device when backward begins, so the copy of a layer may take as long as L - N layers compute.

#include <map>
#include <memory>

#include "core/module.h"
#include "offload/copy_engine.h"
#include "offload/layer_buffers.h"

namespace ferry {

struct LayerOffloadConfig {
  int64_t num_layers = 0;    // the first ones, which are offloaded
  int64_t total_layers = 0;  // of the model; more than num_layers
  bool activations = true;   // false: nothing is moved here; see weight_offload.h
  /// Layers come back into two buffers of the device in turn, made once for the largest layer,
  /// instead of new memory for each tensor.
  bool double_buffering = false;
  /// Host memory is kept for the next layers and steps, instead of given back to the device's pool.
  bool retain_pinned_buffers = false;
};

/// Bytes are counted as module "layer".
class LayerOffload final : public ActivationMover, public BlockHooks {
 public:
  /// `ledger`: see CopyEngine. Counts as module "layer", too.
  LayerOffload(Device& device, const LayerOffloadConfig& config, MemoryLedger* ledger = nullptr);
  ~LayerOffload() override;

  void begin_step(std::span<const PassAction> actions, Stream& compute) override;
  TapePolicy& policy(PassId pass) override;
  void end_step(Stream& compute) override;
  TrafficByModule traffic() const override;

  /// Tells the newest pass which block it is in. Of training passes; others are ignored.
  void before_forward(Pass& pass, int block_idx) override;

  /// For WeightOffload, whose traffic is then part of traffic().
  CopyEngine& engine() { return engine_; }

 private:
  class Layers;

  bool moves(int block) const {
    return config_.activations && 1 <= block && block <= config_.num_layers;
  }

  // Bytes that are on the device, but not on the tape; negative: no longer.
  void count(int64_t bytes) const;

  LayerOffloadConfig config_;
  MemoryLedger* ledger_;
  CopyEngine engine_;
  HostBuffers host_buffers_;
  DoubleBuffer device_buffers_;
  std::map<PassId, std::unique_ptr<Layers>> running_;
  Layers* forward_ = nullptr;  // the pass that goes forward
};

}  // namespace ferry
