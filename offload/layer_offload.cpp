#include "offload/layer_offload.h"

#include <optional>
#include <utility>
#include <vector>

namespace ferry {
namespace {

const std::string kModule = "layer";

}  // namespace

// The policy of one pass.
class LayerOffload::Layers final : public TapePolicy {
 public:
  explicit Layers(LayerOffload& owner) : owner_(owner) {}

  void begin_block(Stream& compute, int block) {
    block_ = block;
    if (pending_) ready_ = compute.record();
    // With it as many layers stay as will be there when backward begins.
    const int64_t num_stay = owner_.config_.total_layers - owner_.config_.num_layers;
    for (auto& [leaving, layer] : layers_)
      if (leaving < block - num_stay) let_go(layer, compute);
  }

  void saved(Record& record, Stream& compute) override {
    record_blocks_.push_back(block_);
    for (const auto& tensor : record.tensors)
      if (tensor && tensor->on_device() && tensor->shape().numel() > 0) collect(tensor);
    if (pending_ && pending_ != block_) commit(compute);
    if (owner_.moves(block_)) pending_ = block_;
  }

  void forward_done(Stream& compute) override {
    if (!pending_) return;
    ready_ = compute.record();
    commit(compute);
  }

  void loading(Record&, Stream& compute) override {
    CHECK(!record_blocks_.empty(), "a record is loaded that was not saved");
    const int block = record_blocks_.back();
    record_blocks_.pop_back();
    if (std::exchange(backward_block_, block) != block) reload(block - 1, compute);
  }

  void backward_done(Stream&) override {
    CHECK(record_blocks_.empty(), "records of a pass were not loaded");
    layers_.clear();
  }

 private:
  // A tensor that left.
  struct Away {
    std::weak_ptr<SavedTensor> saved;
    bool outlives_layer;  // a block below saved it, too, and needs it after this layer's backward
    HostBuffers::Buffer host;
    Tensor device;  // from reload on
    Event on_device;
  };
  struct Layer {
    std::vector<std::shared_ptr<Away>> tensors;  // in the order of forward
    std::vector<Tensor> leaving;                 // device memory of tensors that are copied away
    Event left;
    bool is_reloaded = false;
  };

  class HostResidence final : public Residence {
   public:
    HostResidence(Layers& layers, int block, std::shared_ptr<Away> away)
        : layers_(layers), block_(block), away_(std::move(away)) {}
    Tensor bring_back(Stream& compute) override {
      layers_.reload(block_, compute);
      layers_.owner_.engine_.wait(compute, away_->on_device, kModule);
      layers_.owner_.count(-away_->device.bytes());
      return std::exchange(away_->device, Tensor());
    }

   private:
    Layers& layers_;
    int block_;
    std::shared_ptr<Away> away_;
  };

  // `tensor` is on the device, and the block that runs saves it.
  void collect(const std::shared_ptr<SavedTensor>& tensor) {
    const auto [entry, is_new] = block_of_.emplace(tensor.get(), block_);
    const int previous = std::exchange(entry->second, block_);
    if (!is_new && previous == block_) return;
    if (!is_new && owner_.moves(previous))
      std::erase_if(layers_[previous].tensors,
                    [&](const auto& away) { return away->saved.lock() == tensor; });
    if (!owner_.moves(block_)) return;
    auto away = std::make_shared<Away>();
    away->saved = tensor;
    away->outlives_layer = !is_new;
    layers_[block_].tensors.push_back(std::move(away));
  }

  // The layer that is done leaves.
  void commit(Stream& compute) {
    const int block = *std::exchange(pending_, std::nullopt);
    Layer& layer = layers_[block];
    SavedTensors come_back_together;
    for (const auto& away : layer.tensors) {
      const std::shared_ptr<SavedTensor> saved = away->saved.lock();
      CHECK(saved && saved->on_device(), "a tensor of block ", block, " is gone before it leaves");
      const Tensor& tensor = saved->get(compute);
      away->host = owner_.host_buffers_.take(tensor.numel(), tensor.dtype());
      layer.left = owner_.engine_.copy_to_host(away->host.view(tensor.shape()), tensor,
                                               {ready_, away->host.unused}, kModule);
      layer.leaving.push_back(tensor);
      owner_.count(tensor.bytes());
      saved->move_to(std::make_unique<HostResidence>(*this, block, away));
      if (!away->outlives_layer) come_back_together.push_back(saved);
    }
    if (owner_.config_.double_buffering) owner_.device_buffers_.expect(come_back_together);
  }

  // Memory enqueued later on `compute` may reuse what the layer had.
  void let_go(Layer& layer, Stream& compute) {
    if (layer.leaving.empty()) return;
    owner_.engine_.wait(compute, layer.left, kModule);
    for (const Tensor& tensor : layer.leaving) owner_.count(-tensor.bytes());
    layer.leaving.clear();
  }

  void reload(int block, Stream& compute) {
    const auto found = layers_.find(block);
    if (found == layers_.end() || std::exchange(found->second.is_reloaded, true)) return;
    Layer& layer = found->second;
    let_go(layer, compute);  // so all copies away are done before `ready`
    make_memory(layer, compute);
    const Event ready = compute.record();
    // Backward needs the last ones first.
    for (auto away = layer.tensors.rbegin(); away != layer.tensors.rend(); ++away) {
      Away& tensor = **away;
      owner_.count(tensor.device.bytes());
      tensor.on_device = owner_.engine_.copy_to_device(
          tensor.device, tensor.host.view(tensor.device.shape()), {ready}, kModule);
      owner_.host_buffers_.give_back(std::exchange(tensor.host, {}), tensor.on_device);
    }
  }

  void make_memory(Layer& layer, Stream& compute) {
    SavedTensors together;
    for (const auto& away : layer.tensors)
      if (!away->outlives_layer) together.push_back(away->saved.lock());
    std::optional<std::vector<Tensor>> places;
    if (owner_.config_.double_buffering) places = owner_.device_buffers_.take(compute, together);
    size_t num_placed = 0;
    for (const auto& away : layer.tensors) {
      if (places && !away->outlives_layer) {
        away->device = (*places)[num_placed++];
      } else {
        const std::shared_ptr<SavedTensor> saved = away->saved.lock();
        away->device = Tensor::empty(compute, kModule, saved->shape(), saved->dtype());
      }
    }
  }

  LayerOffload& owner_;
  int block_ = -1;                              // that goes forward
  std::optional<int> pending_;                  // done, but for the next block's first record
  Event ready_;                                 // the end of the pending block
  std::map<int, Layer> layers_;                 // by block
  std::map<const SavedTensor*, int> block_of_;  // that saved the tensor last
  std::vector<int> record_blocks_;              // of each record on the tape
  int backward_block_ = -1;                     // of the record that was loaded last
};

LayerOffload::LayerOffload(Device& device, const LayerOffloadConfig& config, MemoryLedger* ledger)
    : config_(config),
      ledger_(ledger),
      engine_(device, ledger),
      host_buffers_(device, config.retain_pinned_buffers) {
  CHECK(0 < config.num_layers && config.num_layers < config.total_layers, config.num_layers, " of ",
        config.total_layers, " layers");
}

LayerOffload::~LayerOffload() = default;

void LayerOffload::count(int64_t bytes) const {
  if (ledger_ == nullptr) return;
  if (bytes >= 0)
    ledger_->add(kModule, bytes);
  else
    ledger_->remove(kModule, -bytes);
}

void LayerOffload::begin_step(std::span<const PassAction> actions, Stream&) {
  for (const PassAction& action : actions)
    CHECK(action.pass.chunk == 0, "layer offload of a pipeline");
  running_.clear();
  forward_ = nullptr;
  engine_.start_counting();
}

TapePolicy& LayerOffload::policy(PassId pass) {
  const auto [entry, is_new] = running_.emplace(pass, nullptr);
  CHECK(is_new, "micro-batch ", pass.micro, " goes forward twice");
  entry->second = std::make_unique<Layers>(*this);
  forward_ = entry->second.get();
  return *forward_;
}

void LayerOffload::before_forward(Pass& pass, int block_idx) {
  if (forward_ != nullptr && pass.tape().recording()) forward_->begin_block(pass.stream, block_idx);
}

void LayerOffload::end_step(Stream&) { forward_ = nullptr; }

TrafficByModule LayerOffload::traffic() const { return engine_.traffic(); }

}  // namespace ferry
