#include "offload/hybrid_device_optimizer.h"

#include <algorithm>
#include <cstring>

#include "core/ops/elementwise.h"

namespace ferry {
namespace {

// Elements that one thread takes at a time where it only copies.
constexpr int64_t kCopyGrain = int64_t{1} << 20;
// A chunk's pieces begin where vector instructions can read a whole cache line.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; }

// Calls work(begin, end) for parts of [0, count), with all workers.
template <class Work>
void in_parts(WorkerPool& workers, int64_t count, int64_t grain, const Work& work) {
  workers.run((count + grain - 1) / grain,
              [&](int64_t i) { work(i * grain, std::min(count, (i + 1) * grain)); });
}

// to = from: equal, or BF16 to F32, or F32 rounded to BF16. Host memory; at once.
void convert(const Tensor& to, const Tensor& from) {
  CHECK(to.dtype() == from.dtype() || (to.dtype() == DType::F32 && from.dtype() == DType::BF16) ||
            (to.dtype() == DType::BF16 && from.dtype() == DType::F32),
        "from ", name_of(from.dtype()), " to ", name_of(to.dtype()));
  if (to.dtype() == from.dtype()) {
    std::memcpy(to.raw(), from.raw(), static_cast<size_t>(to.bytes()));
  } else if (to.dtype() == DType::F32) {
    std::copy_n(from.data<BFloat16>(), from.numel(), to.data<float>());
  } else {
    std::transform(from.data<float>(), from.data<float>() + from.numel(), to.data<BFloat16>(),
                   [](float x) { return BFloat16(x); });
  }
}

}  // namespace

HybridDeviceOptimizer::HybridDeviceOptimizer(Stream& stream,
                                             std::vector<std::vector<Parameter*>> blocks,
                                             const UpdateRule& rule, const HybridSettings& settings)
    : settings_(settings),
      parameters_(std::move(blocks)),
      rule_(rule),
      device_(stream.device()),
      host_(make_cpu_device()),
      host_stream_(host_->make_stream("optimizer on the host")),
      workers_(settings.num_threads),
      to_host_(device_.make_stream("gradients to host")),
      to_device_(device_.make_stream("values to device")),
      blocks_(parameters_.size()),
      updates_(host_->make_stream("updates on the host")) {
  host_->set_poison_memory(device_.poison_memory());
  choose_places();
  for (const auto& block : parameters_)
    for (const Parameter* parameter : block)
      states_[parameter] = on_host(*parameter) ? make_host_state(stream, *parameter)
                                               : make_device_state(stream, *parameter, rule_,
                                                                   settings_.moment_types);
  make_chunks();
  reserve();
}

void HybridDeviceOptimizer::choose_places() {
  const std::vector<OptimizerPlace> chosen = places();
  size_t i = 0;
  for (const auto& block : parameters_)
    for (const Parameter* parameter : block) on_host_[parameter] = chosen[i++].on_host;
}

std::vector<const Parameter*> HybridDeviceOptimizer::parameters() const {
  std::vector<const Parameter*> all;
  for (const auto& block : parameters_) all.insert(all.end(), block.begin(), block.end());
  return all;
}

std::vector<OptimizerPlace> HybridDeviceOptimizer::places() const {
  return place_optimizer(parameters(), settings_.fraction, settings_.part);
}

int64_t HybridDeviceOptimizer::device_state_bytes(const Parameter& parameter) const {
  const DType full = accumulate_dtype(parameter.dtype);
  size_t bytes = parameter.dtype == full ? 0 : size_of(full);
  for (size_t i = 0; i < rule_.moment_names().size(); ++i)
    bytes += size_of(moment_type(full, settings_.moment_types, i));
  return parameter.shape.numel() * static_cast<int64_t>(bytes);
}

// Through a part of page-locked memory after the other, so that nothing large is held twice.
ParameterState HybridDeviceOptimizer::make_host_state(Stream& stream, const Parameter& parameter) {
  const DType full = accumulate_dtype(parameter.dtype);
  const int64_t numel = parameter.shape.numel();
  ParameterState state;
  state.master = Tensor::empty(*host_stream_, "masters fp32", parameter.shape, full);
  for (int64_t begin = 0; begin < numel; begin += settings_.chunk_elements) {
    const int64_t end = std::min(numel, begin + settings_.chunk_elements);
    const Tensor values = Tensor::host(device_, "offloaded values", {end - begin}, parameter.dtype);
    stream.copy(values, part(parameter.value, begin, end));
    stream.record().wait_host();
    const Tensor masters = part(state.master, begin, end);
    in_parts(workers_, end - begin, kCopyGrain, [&](int64_t first, int64_t last) {
      convert(masters.rows(first, last), values.rows(first, last));
    });
  }
  for (size_t i = 0; i < rule_.moment_names().size(); ++i) {
    const Tensor moment = Tensor::empty(*host_stream_, "moments fp32", parameter.shape, full);
    in_parts(workers_, numel, kCopyGrain, [&](int64_t begin, int64_t end) {
      const Tensor zeros = part(moment, begin, end);
      std::memset(zeros.raw(), 0, static_cast<size_t>(zeros.bytes()));
    });
    state.moments.push_back(moment);
  }
  return state;
}

void HybridDeviceOptimizer::move(Stream& stream, const Parameter& parameter, bool to_host) {
  const DType full = accumulate_dtype(parameter.dtype);
  ParameterState& state = states_.at(&parameter);
  ParameterState moved;
  // A master on the device that is the value itself stays, as the value.
  const auto to = [&](const char* name, const Tensor& from, DType dtype) {
    const Tensor wide = to_host && from.dtype() != full
                            ? Tensor::empty(stream, "moving state", parameter.shape, full)
                            : from;
    if (!wide.same_memory(from)) cast(stream, wide, from);
    const Tensor copy =
        Tensor::empty(to_host ? *host_stream_ : stream, name, parameter.shape, full);
    stream.copy(copy, wide);
    if (dtype == full) return copy;
    const Tensor narrow = Tensor::empty(stream, "moments bf16", parameter.shape, dtype);
    cast(stream, narrow, copy);
    return narrow;
  };
  const bool value_is_master = !to_host && parameter.dtype == full;
  if (value_is_master) {
    stream.copy(parameter.value, state.master);
    moved.master = parameter.value;
  } else {
    moved.master = to("masters fp32", state.master, full);
  }
  for (size_t i = 0; i < state.moments.size(); ++i)
    moved.moments.push_back(to("moments fp32", state.moments[i],
                               to_host ? full : moment_type(full, settings_.moment_types, i)));
  stream.record().wait_host();
  state = std::move(moved);
}

void HybridDeviceOptimizer::set_fraction(Stream& stream, double fraction) {
  wait_all_values(stream);
  finish_update();
  if (guard_) guard_->wait_for_end();
  const std::map<const Parameter*, bool> before = on_host_;
  settings_.fraction = fraction;
  choose_places();
  chunks_.clear();  // they hold state
  for (const auto& [parameter, was_on_host] : before)
    if (on_host(*parameter) != was_on_host) move(stream, *parameter, !was_on_host);
  make_chunks();
  reserve();
}

void HybridDeviceOptimizer::set_guard(std::shared_ptr<CopyOnWrite> guard) {
  finish_update();
  guard_ = std::move(guard);
}

const ParameterState& HybridDeviceOptimizer::state(const Parameter& parameter) {
  finish_update();
  return states_.at(&parameter);
}

void HybridDeviceOptimizer::publish(Stream& stream, const Parameter& parameter) {
  const Tensor& master = state(parameter).master;
  if (master.same_memory(parameter.value)) return;
  if (!on_host(parameter)) return cast(stream, parameter.value, master);
  const int64_t numel = parameter.shape.numel();
  for (int64_t begin = 0; begin < numel; begin += settings_.chunk_elements) {
    const int64_t end = std::min(numel, begin + settings_.chunk_elements);
    const Tensor values = Tensor::host(device_, "offloaded values", {end - begin}, parameter.dtype);
    const Tensor masters = part(master, begin, end);
    in_parts(workers_, end - begin, kCopyGrain, [&](int64_t first, int64_t last) {
      convert(values.rows(first, last), masters.rows(first, last));
    });
    stream.copy(part(parameter.value, begin, end), values);
  }
}

void HybridDeviceOptimizer::make_chunks() {
  chunks_.clear();
  for (size_t block = 0; block < parameters_.size(); ++block)
    for (Parameter* parameter : parameters_[block])
      if (on_host(*parameter)) add_to_chunks(block, *parameter);
  // Another stage waits for these.
  std::stable_partition(chunks_.begin(), chunks_.end(),
                        [](const Chunk& chunk) { return chunk.axis == ReduceAxis::Tied; });
}

void HybridDeviceOptimizer::add_to_chunks(size_t block, Parameter& parameter) {
  const ParameterState& state = states_.at(&parameter);
  for (int64_t begin = 0; begin < parameter.shape.numel();) {
    const auto open = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) {
      return chunk.block == block && chunk.axis == parameter.axis &&
             chunk.dtype == parameter.dtype && chunk.elements < settings_.chunk_elements;
    });
    if (open == chunks_.end()) {
      chunks_.push_back({block, parameter.axis, parameter.dtype, {}, 0, {}, {}, 0});
      continue;
    }
    const int64_t end =
        std::min(parameter.shape.numel(), begin + settings_.chunk_elements - open->elements);
    Piece piece{&parameter, begin, end, open->elements, {part(state.master, begin, end), {}}};
    for (const Tensor& moment : state.moments)
      piece.state.moments.push_back(part(moment, begin, end));
    open->pieces.push_back(std::move(piece));
    open->elements += aligned(end - begin);
    begin = end;
  }
}

// Page-locked memory is slow to make, and may not be had: now, not in the first step.
void HybridDeviceOptimizer::reserve() {
  std::vector<Tensor> reserved;
  size_t num_values = 0, num_gradients = 0;
  for (const Chunk& chunk : chunks_) {
    if (settings_.overlap || num_gradients++ == 0)
      reserved.push_back(host_buffer("offloaded gradients", chunk.elements,
                                     accumulate_dtype(chunk.dtype), settings_.pin_gradients));
    if (num_values++ < kMaxReturning)
      reserved.push_back(
          host_buffer("offloaded values", chunk.elements, chunk.dtype, settings_.pin_values));
  }
}

Tensor HybridDeviceOptimizer::host_buffer(std::string_view name, int64_t elements, DType dtype,
                                          bool pinned) {
  return pinned ? Tensor::host(device_, name, {elements}, dtype)
                : Tensor::empty(*host_stream_, name, {elements}, dtype);
}

}  // namespace ferry
