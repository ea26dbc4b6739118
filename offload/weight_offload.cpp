#include "offload/weight_offload.h"

#include <string>
#include <utility>

namespace ferry {
namespace {

const std::string kModule = "layer_weights";

bool has_wider_master(const Parameter& parameter) {
  return accumulate_dtype(parameter.dtype) != parameter.dtype;
}

}  // namespace

WeightOffload::WeightOffload(CopyEngine& engine, const std::vector<std::vector<Parameter*>>& blocks,
                             int64_t num_layers, const std::vector<Parameter*>& views)
    : engine_(engine), layers_(static_cast<size_t>(num_layers)) {
  CHECK(0 < num_layers && num_layers + 2 < std::ssize(blocks), num_layers, " layers of ",
        blocks.size(), " blocks");
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (Parameter* parameter : blocks[i + 1]) {
      if (!has_wider_master(*parameter)) continue;
      Moved moved{parameter, {}, {}};
      const Tensor& value = parameter->value;
      const auto size = static_cast<int64_t>(size_of(value.dtype()));
      for (Parameter* view : views)
        if (view->value.storage() == value.storage())
          moved.views.push_back({view, (view->value.byte_offset() - value.byte_offset()) / size});
      layers_[i].parameters.push_back(std::move(moved));
    }
  }
  CHECK(bytes() > 0, "all values are masters themselves, and stay on the device");
}

int64_t WeightOffload::bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_)
    for (const Moved& moved : layer.parameters)
      bytes +=
          moved.parameter->shape.numel() * static_cast<int64_t>(size_of(moved.parameter->dtype));
  return bytes;
}

void WeightOffload::before_forward(Pass& pass, int block_idx) {
  let_go(block_idx - 1, pass.stream);
  require(block_idx, pass.stream);
  start(block_idx + 1, pass.stream);
}

void WeightOffload::after_backward(Pass& pass, int block_idx) {
  if (block_idx != 1) let_go(block_idx, pass.stream);
  require(block_idx - 1, pass.stream);
  start(block_idx - 2, pass.stream);
}

void WeightOffload::make_room(Stream& compute) {
  for (Layer& layer : layers_) {
    arrive(layer, compute);
    wait_until_sent(layer, compute);
    if (layer.place == Place::Host) allocate(layer, compute);
    layer.place = Place::Device;
    layer.in_host = false;
    for (const Moved& moved : layer.parameters) {
      const Tensor flat = moved.parameter->value.reshape({moved.parameter->shape.numel()});
      for (const auto& [view, first] : moved.views)
        view->value = flat.rows(first, first + view->shape.numel()).reshape(view->shape);
    }
  }
}

void WeightOffload::send_all(Stream& compute) {
  const Event ready = compute.record();
  for (Layer& layer : layers_) {
    CHECK(layer.place == Place::Device && !layer.in_host, "send_all() without make_room() before");
    for (Moved& moved : layer.parameters) {
      const Parameter& parameter = *moved.parameter;
      if (!moved.host.defined())
        moved.host =
            Tensor::host(compute.device(), "offloaded weights", parameter.shape, parameter.dtype);
      layer.sent = engine_.copy_to_host(moved.host, parameter.value, {ready}, kModule);
      for (const View& view : moved.views) view.parameter->value = Tensor();
    }
    layer.in_host = true;
  }
}

WeightOffload::Layer* WeightOffload::layer_of(int block) {
  if (block < 1 || block > std::ssize(layers_)) return nullptr;
  return &layers_[static_cast<size_t>(block - 1)];
}

void WeightOffload::allocate(Layer& layer, Stream& compute) {
  for (const Moved& moved : layer.parameters) {
    Parameter& parameter = *moved.parameter;
    parameter.value = Tensor::empty(compute, "parameters", parameter.shape, parameter.dtype);
  }
}

void WeightOffload::start(int block, Stream& compute) {
  Layer* layer = layer_of(block);
  if (layer == nullptr || layer->place != Place::Host) return;
  allocate(*layer, compute);
  // The copy to the host is done by then: let_go() waited for it.
  const Event ready = compute.record();
  for (const Moved& moved : layer->parameters)
    layer->on_device = engine_.copy_to_device(moved.parameter->value, moved.host, {ready}, kModule);
  layer->place = Place::Arriving;
}

void WeightOffload::require(int block, Stream& compute) {
  Layer* layer = layer_of(block);
  if (layer == nullptr) return;
  CHECK(layer->in_host, "the values of block ", block, " are used, but were not sent");
  start(block, compute);
  arrive(*layer, compute);
}

void WeightOffload::arrive(Layer& layer, Stream& compute) {
  if (layer.place != Place::Arriving) return;
  engine_.wait(compute, layer.on_device, kModule);
  layer.place = Place::Device;
}

void WeightOffload::let_go(int block, Stream& compute) {
  Layer* layer = layer_of(block);
  if (layer == nullptr || layer->place == Place::Host) return;
  arrive(*layer, compute);
  wait_until_sent(*layer, compute);
  for (const Moved& moved : layer->parameters) moved.parameter->value = Tensor();
  layer->place = Place::Host;
}

void WeightOffload::wait_until_sent(Layer& layer, Stream& compute) {
  if (!layer.sent) return;
  engine_.wait(compute, *layer.sent, kModule);
  layer.sent.reset();
}

}  // namespace ferry
