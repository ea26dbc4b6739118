// The update of HybridDeviceOptimizer.

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/seconds_since.h"
#include "offload/hybrid_device_optimizer.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

// Elements that one thread updates at a time: 30 bytes of memory each.
constexpr int64_t kGrain = int64_t{128} << 10;

}  // namespace

void HybridDeviceOptimizer::begin_step(Stream& stream) {
  const auto begin = stream.stamp();
  stream.wait(to_host_->record());
  if (times_) times_->waits.push_back({begin, stream.stamp()});
  for (Chunk& chunk : chunks_) {
    if (!chunk.gradients.defined()) continue;
    chunk.arrived.wait_host();  // its memory is for this step, which may be quick to ask for it
    chunk.gradients = Tensor();
  }
  sent_.clear();
  sent_bytes_ = 0;
}

void HybridDeviceOptimizer::gradients_final(int block, ReduceAxis axis, const Event& final) {
  if (!settings_.overlap) return;
  bool waited = false;
  for (Chunk& chunk : chunks_) {
    if (chunk.block != static_cast<size_t>(block) || chunk.axis != axis) continue;
    if (!std::exchange(waited, true)) to_host_->wait(final);
    send(chunk);
  }
}

void HybridDeviceOptimizer::send(Chunk& chunk) {
  chunk.gradients = host_buffer("offloaded gradients", chunk.elements,
                                accumulate_dtype(chunk.dtype), settings_.pin_gradients);
  const auto begin = to_host_->stamp();
  for (const Piece& piece : chunk.pieces) {
    const int64_t numel = piece.end - piece.begin;
    to_host_->copy(chunk.gradients.rows(piece.offset, piece.offset + numel),
                   part(piece.parameter->grad, piece.begin, piece.end));
    sent_bytes_ += numel * static_cast<int64_t>(size_of(chunk.gradients.dtype()));
  }
  sent_.push_back({begin, to_host_->stamp()});
  chunk.arrived = to_host_->record();
  chunk.sequence = num_sent_++;
}

HybridDeviceOptimizer::Job HybridDeviceOptimizer::take_job(Chunk& chunk) {
  Job job{&chunk, std::exchange(chunk.gradients, Tensor()), chunk.arrived, chunk.sequence, {}};
  for (const Piece& piece : chunk.pieces)
    job.values.push_back(part(piece.parameter->value, piece.begin, piece.end));
  return job;
}

void HybridDeviceOptimizer::update(Stream& stream, const UpdateRule& rule,
                                   const UpdateScalars& scalars) {
  CHECK(&rule == &rule_, "another rule than the one whose state this is");
  finish_update();
  const Event ready = stream.record();  // gradients are final, and values no longer read
  to_host_->wait(ready);
  to_device_->wait(ready);
  for (const auto& block : parameters_)
    for (const Parameter* parameter : block)
      if (!on_host(*parameter))
        rule_.update(stream, parameter->value, states_.at(parameter), parameter->grad,
                     scalars_of(*parameter, scalars));
  if (chunks_.empty()) {
    last_times_ = {};
    return;
  }

  if (settings_.overlap) {
    std::vector<Job> jobs;
    for (Chunk& chunk : chunks_) {
      if (!chunk.gradients.defined()) send(chunk);
      jobs.push_back(take_job(chunk));
    }
    times_.emplace();
    times_->d2h = std::exchange(sent_, {});
    times_->d2h_bytes = std::exchange(sent_bytes_, 0);
    for (const Chunk& chunk : chunks_)
      blocks_[chunk.block].enqueued = std::make_shared<HostEvent>(updates_->name());
    enqueue_cpu(*updates_, [this, jobs = std::move(jobs), scalars]() mutable {
      run(std::move(jobs), scalars);
    });
    return;
  }

  const auto start = Clock::now();
  const auto begin = stream.stamp();
  times_.emplace();
  for (Chunk& chunk : chunks_) {
    send(chunk);
    const Job job = take_job(chunk);
    job.arrived.wait_host();
    return_values(job, update_on_host(job, scalars));
    to_device_->record().wait_host();
  }
  returning_.clear();
  stream.wait(to_device_->record());
  times_->waits.push_back({begin, stream.stamp()});
  times_->d2h = std::exchange(sent_, {});
  times_->d2h_bytes = std::exchange(sent_bytes_, 0);
  times_->wall = seconds_since(start);
  finish_update();
}

// Leads an update: on the thread of updates_.
void HybridDeviceOptimizer::run(std::vector<Job> jobs, const UpdateScalars& scalars) {
  const auto start = Clock::now();
  std::vector<size_t> jobs_left(blocks_.size());
  for (const Job& job : jobs) ++jobs_left[job.chunk->block];
  try {
    while (!jobs.empty()) {
      const size_t next = next_job(jobs);
      Job job = std::move(jobs[next]);
      jobs.erase(jobs.begin() + static_cast<int64_t>(next));
      const Tensor values = update_on_host(job, scalars);
      job.gradients = Tensor();  // before anybody knows: the next step wants its memory
      return_values(job, values);
      const size_t block = job.chunk->block;
      if (--jobs_left[block] > 0) continue;
      blocks_[block].on_device = returning_.back();
      const auto enqueued = blocks_[block].enqueued;  // whoever waits for it lets go of it
      enqueued->set(nullptr);
    }
    for (const Event& copied : std::exchange(returning_, {})) copied.wait_host();
    times_->wall = seconds_since(start);
  } catch (...) {
    for (size_t block = 0; block < blocks_.size(); ++block)
      if (jobs_left[block] > 0) blocks_[block].enqueued->set(std::current_exception());
    throw;
  }
}

// The first that has arrived; if none has, the one that will be next.
size_t HybridDeviceOptimizer::next_job(const std::vector<Job>& jobs) const {
  for (size_t i = 0; i < jobs.size(); ++i)
    if (jobs[i].arrived.ready()) return i;
  const auto next = std::min_element(
      jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.sequence < b.sequence; });
  next->arrived.wait_host();
  return static_cast<size_t>(next - jobs.begin());
}

Tensor HybridDeviceOptimizer::update_on_host(const Job& job, const UpdateScalars& scalars) {
  const auto start = Clock::now();
  const Chunk& chunk = *job.chunk;
  const Tensor values =
      host_buffer("offloaded values", chunk.elements, chunk.dtype, settings_.pin_values);
  struct Task {
    const Piece* piece;
    int64_t begin, end;  // of the piece
  };
  std::vector<Task> tasks;
  for (const Piece& piece : chunk.pieces) {
    const int64_t numel = piece.end - piece.begin;
    for (int64_t begin = 0; begin < numel; begin += kGrain)
      tasks.push_back({&piece, begin, std::min(numel, begin + kGrain)});
  }
  workers_.run(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    const auto& [piece, begin, end] = tasks[static_cast<size_t>(i)];
    ParameterState state{piece->state.master.rows(begin, end), {}};
    for (const Tensor& moment : piece->state.moments)
      state.moments.push_back(moment.rows(begin, end));
    if (guard_) {
      guard_->before_change(state.master.raw(), state.master.bytes());
      for (const Tensor& moment : state.moments)
        guard_->before_change(moment.raw(), moment.bytes());
    }
    rule_.update_on_host(values.rows(piece->offset + begin, piece->offset + end), state,
                         job.gradients.rows(piece->offset + begin, piece->offset + end),
                         scalars_of(*piece->parameter, scalars));
  });
  times_->cpu_update += seconds_since(start);
  return values;
}

void HybridDeviceOptimizer::return_values(const Job& job, const Tensor& values) {
  const auto begin = to_device_->stamp();
  for (size_t i = 0; i < job.values.size(); ++i) {
    const Piece& piece = job.chunk->pieces[i];
    to_device_->copy(job.values[i],
                     values.rows(piece.offset, piece.offset + piece.end - piece.begin));
    times_->h2d_bytes += job.values[i].bytes();
  }
  times_->h2d.push_back({begin, to_device_->stamp()});
  returning_.push_back(to_device_->record());
  if (returning_.size() < kMaxReturning) return;
  returning_.front().wait_host();
  returning_.pop_front();
}

void HybridDeviceOptimizer::wait_values(Stream& stream, int block_idx) {
  Block& block = blocks_.at(static_cast<size_t>(block_idx));
  if (!block.enqueued) return;
  const auto begin = stream.stamp();
  block.enqueued->wait_host();
  stream.wait(block.on_device);
  block.enqueued = nullptr;
  if (times_) times_->waits.push_back({begin, stream.stamp()});
}

void HybridDeviceOptimizer::wait_all_values(Stream& stream) {
  for (size_t block = 0; block < blocks_.size(); ++block)
    wait_values(stream, static_cast<int>(block));
}

void HybridDeviceOptimizer::finish_update() {
  updates_->synchronize();
  if (!times_) return;
  const auto sum = [](const std::vector<Span>& spans) {
    double seconds = 0;
    for (const Span& span : spans) seconds += span.end->seconds_since(*span.begin);
    return seconds;
  };
  int64_t host_elements = 0;
  for (const Chunk& chunk : chunks_)
    for (const Piece& piece : chunk.pieces) host_elements += piece.end - piece.begin;
  last_times_ = {sum(times_->d2h), times_->cpu_update, sum(times_->h2d),  sum(times_->waits),
                 times_->wall,     times_->d2h_bytes,  times_->h2d_bytes, host_elements};
  times_.reset();
}

}  // namespace ferry
