#pragma once

// Weights of the first layers wait in host memory between their uses: a layer's values are copied
// to the device while the block before it in forward (the block above it in backward) runs, and let
// go after it. Hooks for training and for evaluation alike.
//
// The host has its copy from each update on; the first forward after it finds the values on the
// device. The first layer's values are not let go after backward: they are what is used next.
//
// A value that has the optimizer's precision is the master itself (optim/state_store.h) and stays
// on the device, so this saves memory where masters are wider than values: for bf16 models.

#include <optional>
#include <vector>

#include "core/module.h"
#include "offload/copy_engine.h"

namespace ferry {

/// While a layer is away, `value` of its parameters is undefined. Around an update or a load:
///   make_room(compute); <write all values>; send_all(compute)
/// and send_all() once when the first values are made. Bytes are counted as "layer_weights".
class WeightOffload final : public BlockHooks {
 public:
  /// `blocks`: parameters by block, with memory; those of blocks 1 to num_layers move, of which at
  /// least one must have a wider master. `views`: parameters (shards) whose value may be a view of
  /// such a value; it is defined from make_room() to send_all() only. All must outlive this.
  WeightOffload(CopyEngine& engine, const std::vector<std::vector<Parameter*>>& blocks,
                int64_t num_layers, const std::vector<Parameter*>& views);

  void before_forward(Pass& pass, int block_idx) override;
  void after_backward(Pass& pass, int block_idx) override;

  /// Gives every value memory on the device. Its contents are undefined: all of it must be written.
  void make_room(Stream& compute);
  /// Starts to copy all values, which are ready on `compute`, to the host. They are let go as the
  /// next forward has used them.
  void send_all(Stream& compute);

  /// Of the values that move: pinned memory of the host from send_all() on.
  int64_t bytes() const;

 private:
  struct View {
    Parameter* parameter;
    int64_t first_element;  // in the flat value
  };
  struct Moved {
    Parameter* parameter;
    std::vector<View> views;
    Tensor host;
  };
  enum class Place { Device, Arriving, Host };
  struct Layer {
    std::vector<Moved> parameters;
    Place place = Place::Device;
    Event on_device;            // the end of the copy to the device
    std::optional<Event> sent;  // the end of the copy to the host, until `compute` waited for it
    bool in_host = false;       // the host has these values, or will
  };

  // Of a block; blocks that do not move are ignored.
  Layer* layer_of(int block);
  void allocate(Layer& layer, Stream& compute);
  void start(int block, Stream& compute);
  void require(int block, Stream& compute);
  void arrive(Layer& layer, Stream& compute);
  void let_go(int block, Stream& compute);
  void wait_until_sent(Layer& layer, Stream& compute);

  CopyEngine& engine_;
  std::vector<Layer> layers_;
};

}  // namespace ferry
