#include "offload/copy_engine.h"

#include <algorithm>
#include <utility>

namespace ferry {

CopyEngine::CopyEngine(Device& device)
    : device_(device),
      to_host_(device.make_stream("offload to host")),
      to_device_(device.make_stream("offload to device")) {
  device_.on_low_memory([this] {
    for (const UnderWay& copy : under_way_) copy.copied.wait_host();
    release_finished();
  });
}

CopyEngine::~CopyEngine() { device_.on_low_memory({}); }

size_t CopyEngine::module_index(const std::string& module) {
  const auto found = std::find(modules_.begin(), modules_.end(), module);
  if (found != modules_.end()) return static_cast<size_t>(found - modules_.begin());
  modules_.push_back(module);
  d2h_bytes_.push_back(0);
  h2d_bytes_.push_back(0);
  return modules_.size() - 1;
}

std::shared_ptr<HostedTensor> CopyEngine::to_host(const Tensor& tensor, const Event& ready,
                                                  const std::string& module) {
  release_finished();
  auto hosted = std::make_shared<HostedTensor>();
  hosted->module_ = module_index(module);
  hosted->host_ = Tensor::host(device_, "offloaded activations", tensor.shape(), tensor.dtype());
  to_host_->wait(ready);
  to_host_->copy(hosted->host_, tensor);
  hosted->in_host_ = to_host_->record();
  hosted->sequence_ = num_left_++;
  under_way_.push_back({tensor, hosted->in_host_, hosted->sequence_});
  d2h_bytes_[hosted->module_] += tensor.bytes();
  return hosted;
}

void CopyEngine::release_finished() {
  while (!under_way_.empty() && under_way_.front().copied.ready()) under_way_.pop_front();
}

void CopyEngine::join(Stream& compute, const HostedTensor& hosted) {
  if (under_way_.empty() || under_way_.front().sequence > hosted.sequence_) return;
  wait(compute, hosted.in_host_, hosted.module_);
  while (!under_way_.empty() && under_way_.front().sequence <= hosted.sequence_)
    under_way_.pop_front();
}

void CopyEngine::reload(HostedTensor& hosted, Stream& compute) {
  CHECK(hosted.host_.defined() && !hosted.reloading(), "a tensor is reloaded twice");
  hosted.device_ =
      Tensor::empty(compute, modules_[hosted.module_], hosted.host_.shape(), hosted.host_.dtype());
  // The memory may still be read or written by what was enqueued on compute before it was freed.
  to_device_->wait(compute.record());
  to_device_->wait(hosted.in_host_);
  to_device_->copy(hosted.device_, hosted.host_);
  hosted.on_device_ = to_device_->record();
  h2d_bytes_[hosted.module_] += hosted.host_.bytes();
  hosted.host_ = Tensor();
}

Tensor CopyEngine::bring_back(HostedTensor& hosted, Stream& compute) {
  if (!hosted.reloading()) reload(hosted, compute);
  wait(compute, hosted.on_device_, hosted.module_);
  return std::exchange(hosted.device_, Tensor());
}

void CopyEngine::wait(Stream& compute, const Event& event, size_t module) {
  const auto begin = compute.stamp();
  compute.wait(event);
  waits_.push_back({module, begin, compute.stamp()});
}

TrafficByModule CopyEngine::traffic() const {
  to_host_->synchronize();
  to_device_->synchronize();
  TrafficByModule traffic;
  for (size_t i = 0; i < modules_.size(); ++i)
    if (d2h_bytes_[i] > 0 || h2d_bytes_[i] > 0)
      traffic[modules_[i]] = {d2h_bytes_[i], h2d_bytes_[i], 0.0};
  for (const Wait& wait : waits_)
    traffic[modules_[wait.module]].exposed_s += wait.end->seconds_since(*wait.begin);
  return traffic;
}

void CopyEngine::start_counting() {
  std::fill(d2h_bytes_.begin(), d2h_bytes_.end(), 0);
  std::fill(h2d_bytes_.begin(), h2d_bytes_.end(), 0);
  waits_.clear();
}

}  // namespace ferry
