#include "offload/copy_engine.h"

#include <algorithm>
#include <utility>

namespace ferry {

CopyEngine::CopyEngine(Device& device, MemoryLedger* ledger, bool takes_back)
    : device_(device),
      ledger_(ledger),
      takes_back_(takes_back),
      to_host_(device.make_stream("offload to host")),
      to_device_(device.make_stream("offload to device")) {
  device_.on_low_memory([this] {
    for (const UnderWay& copy : under_way_) copy.copied.wait_host();
    release_finished();
  });
}

CopyEngine::~CopyEngine() {
  device_.on_low_memory({});
  while (!under_way_.empty()) release_oldest();
}

void CopyEngine::count(size_t module, int64_t bytes) const {
  if (ledger_ == nullptr) return;
  if (bytes >= 0)
    ledger_->add(modules_[module], bytes);
  else
    ledger_->remove(modules_[module], -bytes);
}

void CopyEngine::release_oldest() {
  const UnderWay& oldest = under_way_.front();
  if (!oldest.taken_back) count(oldest.module, -oldest.device.bytes());
  under_way_.pop_front();
}

void CopyEngine::release_until(int64_t sequence) {
  while (!under_way_.empty() && under_way_.front().sequence <= sequence) release_oldest();
}

Tensor CopyEngine::take_back(const HostedTensor& hosted) {
  // A graph moves the same in every launch.
  if (!takes_back_ || to_host_->is_captured()) return {};
  if (under_way_.empty() || hosted.in_host_.ready()) return {};
  const int64_t index = hosted.sequence_ - under_way_.front().sequence;
  if (index < 0) return {};
  // It stays here, too, until its copy is done: a stream that frees memory waits for its copies.
  UnderWay& own = under_way_[static_cast<size_t>(index)];
  own.taken_back = true;
  count(own.module, -own.device.bytes());
  return own.device;
}

size_t CopyEngine::module_index(const std::string& module) {
  const auto found = std::find(modules_.begin(), modules_.end(), module);
  if (found != modules_.end()) return static_cast<size_t>(found - modules_.begin());
  modules_.push_back(module);
  for (Moved* moved : {&d2h_, &h2d_}) {
    moved->bytes.push_back(0);
    moved->recorded.push_back(0);
  }
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
  under_way_.push_back({tensor, hosted->in_host_, hosted->sequence_, hosted->module_});
  count(hosted->module_, tensor.bytes());
  d2h_.add(*to_host_, hosted->module_, tensor.bytes());
  return hosted;
}

void CopyEngine::release_finished() {
  if (to_host_->is_captured()) return;
  while (!under_way_.empty() && under_way_.front().copied.ready()) release_oldest();
}

void CopyEngine::join(Stream& compute, const HostedTensor& hosted) {
  if (under_way_.empty() || under_way_.front().sequence > hosted.sequence_) return;
  wait(compute, hosted.in_host_, modules_[hosted.module_]);
  release_until(hosted.sequence_);
}

void CopyEngine::settle() {
  to_host_->synchronize();
  to_device_->synchronize();
  release_finished();
  for (Moved* moved : {&d2h_, &h2d_}) std::fill(moved->recorded.begin(), moved->recorded.end(), 0);
}

void CopyEngine::reload(HostedTensor& hosted, Stream& compute) {
  CHECK(hosted.away(), "a tensor is reloaded twice");
  hosted.device_ = take_back(hosted);
  if (hosted.device_.defined()) {
    count(hosted.module_, hosted.device_.bytes());
    hosted.host_ = Tensor();
    return;
  }
  hosted.device_ =
      Tensor::empty(compute, modules_[hosted.module_], hosted.host_.shape(), hosted.host_.dtype());
  // The memory may still be read or written by what was enqueued on compute before it was freed.
  to_device_->wait(compute.record());
  to_device_->wait(hosted.in_host_);
  to_device_->copy(hosted.device_, hosted.host_);
  hosted.on_device_ = to_device_->record();
  h2d_.add(*to_device_, hosted.module_, hosted.host_.bytes());
  count(hosted.module_, hosted.host_.bytes());
  hosted.host_ = Tensor();
}

Tensor CopyEngine::bring_back(HostedTensor& hosted, Stream& compute) {
  if (!hosted.reloading()) reload(hosted, compute);
  wait(compute, hosted.on_device_, modules_[hosted.module_]);
  // A copy back comes after the copy away, so compute has waited for that, too.
  if (compute.is_captured()) release_until(hosted.sequence_);
  count(hosted.module_, -hosted.device_.bytes());
  return std::exchange(hosted.device_, Tensor());
}

Event CopyEngine::copy_to_host(const Tensor& host, const Tensor& device,
                               std::initializer_list<Event> after, const std::string& module) {
  for (const Event& event : after) to_host_->wait(event);
  to_host_->copy(host, device);
  d2h_.add(*to_host_, module_index(module), device.bytes());
  return to_host_->record();
}

Event CopyEngine::copy_to_device(const Tensor& device, const Tensor& host,
                                 std::initializer_list<Event> after, const std::string& module) {
  for (const Event& event : after) to_device_->wait(event);
  to_device_->copy(device, host);
  h2d_.add(*to_device_, module_index(module), host.bytes());
  return to_device_->record();
}

void CopyEngine::wait(Stream& compute, const Event& event, const std::string& module) {
  if (compute.is_captured()) return compute.wait(event);
  const auto begin = compute.stamp();
  compute.wait(event);
  waits_.push_back({module_index(module), begin, compute.stamp()});
}

TrafficByModule CopyEngine::traffic() const {
  to_host_->synchronize();
  to_device_->synchronize();
  TrafficByModule traffic;
  for (size_t i = 0; i < modules_.size(); ++i)
    if (d2h_.bytes[i] > 0 || h2d_.bytes[i] > 0)
      traffic[modules_[i]] = {d2h_.bytes[i], h2d_.bytes[i], 0.0};
  for (const Wait& wait : waits_)
    traffic[modules_[wait.module]].exposed_s += wait.end->seconds_since(*wait.begin);
  return traffic;
}

void CopyEngine::start_counting() {
  for (Moved* moved : {&d2h_, &h2d_}) std::fill(moved->bytes.begin(), moved->bytes.end(), 0);
  waits_.clear();
  release_finished();
}

void CopyEngine::count_launch() {
  for (Moved* moved : {&d2h_, &h2d_})
    for (size_t i = 0; i < modules_.size(); ++i) moved->bytes[i] += moved->recorded[i];
}

}  // namespace ferry
