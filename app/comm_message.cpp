#include "app/comm_message.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "core/check.h"
#include "core/host_copy.h"
#include "core/ops/elementwise.h"
#include "core/rng.h"

namespace ferry {
namespace {

// Elements after which numbers repeat. A prime: neither the ranks' parts nor the pieces that
// libraries cut messages into are multiples of it, so that a piece in the place of another is
// wrong.
constexpr int64_t kPeriod = (int64_t{1} << 20) - 3;
constexpr int kExactIntegers = 256;  // bf16 has every integer up to this one

// Adds the numbers of `rank` from its first one on: sixteen from one counter.
void add_numbers(std::span<float> out, uint64_t seed, int rank, int num_ranks) {
  const int largest = std::clamp(kExactIntegers / num_ranks, 1, 127);
  const auto num_values = static_cast<uint32_t>(2 * largest + 1);
  const RandomKey key{seed, 0, static_cast<uint32_t>(rank)};
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % 16 == 0) words = philox(key, i / 16);
    const uint32_t byte = words[i % 16 / 4] >> (8 * (i % 4)) & 0xff;
    out[i] += static_cast<float>(static_cast<int>(byte * num_values >> 8) - largest);
  }
}

// Cuts `count` elements where periods end, of which element `first` is the first one. Calls
// body(begin, phase, length): which of the elements, and where in the period they begin.
template <class Body>
void in_periods(int64_t first, int64_t count, Body body) {
  for (int64_t begin = 0, length = 0; begin < count; begin += length) {
    const int64_t phase = (first + begin) % kPeriod;
    length = std::min(kPeriod - phase, count - begin);
    body(begin, phase, length);
  }
}

}  // namespace

const char* name_of(CommKind kind) {
  switch (kind) {
    case CommKind::AllReduce:
      return "all-reduce";
    case CommKind::AllGather:
      return "all-gather";
    case CommKind::ReduceScatter:
      return "reduce-scatter";
    case CommKind::AllToAll:
      return "all-to-all";
    case CommKind::PointToPoint:
      return "point-to-point";
  }
  return "?";
}

double bus_factor(CommKind kind, int num_ranks) {
  if (kind == CommKind::PointToPoint) return 1;
  const double others = static_cast<double>(num_ranks - 1) / num_ranks;
  return kind == CommKind::AllReduce ? 2 * others : others;
}

CommMessage::CommMessage(CommKind kind, int64_t bytes, DType dtype, Stream& stream, Group& world,
                         const PipelineLinks& ring)
    : kind_(kind),
      stream_(stream),
      world_(world),
      ring_(ring),
      part_(std::max<int64_t>(1, bytes / (world.size() * static_cast<int64_t>(size_of(dtype))))),
      part_of_rank_(static_cast<size_t>(world.size()), part_) {
  CHECK(ring.activations_out() != nullptr && ring.activations_in() != nullptr,
        "the links of group ", world.name(), " are no ring");
  const int64_t all = part_ * world.size();
  const Shape input{kind == CommKind::AllGather ? part_ : all};
  const Shape output{kind == CommKind::ReduceScatter ? part_ : all};
  input_ = Tensor::empty(stream, "bench", input, dtype);
  output_ = Tensor::empty(stream, "bench", output, dtype);
}

// The sums of the numbers of ranks [first_rank, end_rank), until they repeat or inputs end.
Tensor CommMessage::period(uint64_t seed, int first_rank, int end_rank) const {
  std::vector<float> numbers(static_cast<size_t>(std::min(kPeriod, input_.numel())));
  for (int rank = first_rank; rank < end_rank; ++rank)
    add_numbers(numbers, seed, rank, world_.size());
  const Shape shape{static_cast<int64_t>(numbers.size())};
  const Tensor period = Tensor::empty(stream_, "bench", shape, dtype());
  cast(stream_, period, from_host(stream_, "bench", numbers, shape));
  return period;
}

void CommMessage::fill(uint64_t seed) {
  const Tensor own = period(seed, world_.rank(), world_.rank() + 1);
  in_periods(0, input_.numel(), [&](int64_t begin, int64_t phase, int64_t length) {
    stream_.copy(input_.rows(begin, begin + length), own.rows(phase, phase + length));
  });
  stream_.synchronize();
}

void CommMessage::restore() {
  if (kind_ == CommKind::AllReduce) stream_.copy(output_, input_);
}

void CommMessage::enqueue() {
  switch (kind_) {
    case CommKind::AllReduce:
      return world_.all_reduce(stream_, output_, ReduceOp::Sum);
    case CommKind::AllGather:
      return world_.all_gather(stream_, output_, input_);
    case CommKind::ReduceScatter:
      return world_.reduce_scatter(stream_, output_, input_);
    case CommKind::AllToAll:
      return world_.all_to_all(stream_, output_, part_of_rank_, input_, part_of_rank_);
    case CommKind::PointToPoint:
      return enqueue_ring();
  }
}

// As in a pipeline: each direction has a stream and a group of its own.
void CommMessage::enqueue_ring() {
  const PipelineLink& out = *ring_.activations_out();
  const PipelineLink& in = *ring_.activations_in();
  const Event begin = stream_.record();
  out.stream->wait(begin);
  in.stream->wait(begin);
  out.group->send(*out.stream, input_, out.peer);
  in.group->receive(*in.stream, output_, in.peer);
  stream_.wait(out.stream->record());
  stream_.wait(in.stream->record());
}

std::vector<CommMessage::Stretch> CommMessage::expected() const {
  const int size = world_.size(), rank = world_.rank();
  const int64_t own = rank * part_;  // where this rank's part of everybody's input begins
  std::vector<Stretch> stretches;
  switch (kind_) {
    case CommKind::AllReduce:
      return {{0, size * part_, 0, size, 0}};
    case CommKind::ReduceScatter:
      return {{0, part_, 0, size, own}};
    case CommKind::PointToPoint: {
      const int before = (rank + size - 1) % size;
      return {{0, size * part_, before, before + 1, 0}};
    }
    case CommKind::AllGather:
    case CommKind::AllToAll:
      for (int from = 0; from < size; ++from)
        stretches.push_back(
            {from * part_, part_, from, from + 1, kind_ == CommKind::AllToAll ? own : 0});
  }
  return stretches;
}

void CommMessage::check(uint64_t seed) {
  const Shape at_most{std::min(kPeriod, input_.numel())};
  const Tensor wanted = Tensor::host(stream_.device(), "bench", at_most, dtype());
  const Tensor got = Tensor::host(stream_.device(), "bench", at_most, dtype());
  for (const Stretch& stretch : expected()) {
    stream_.copy(wanted, period(seed, stretch.first_rank, stretch.end_rank));
    in_periods(stretch.source, stretch.count, [&](int64_t begin, int64_t phase, int64_t length) {
      begin += stretch.begin;
      stream_.copy(got.rows(0, length), output_.rows(begin, begin + length));
      stream_.synchronize();
      compare(begin, got.rows(0, length), wanted.rows(phase, phase + length));
    });
  }
}

// What the output has from element `begin` on, and what it must have; on the host.
void CommMessage::compare(int64_t begin, const Tensor& got, const Tensor& wanted) const {
  if (std::memcmp(got.raw(), wanted.raw(), static_cast<size_t>(got.bytes())) == 0) return;
  // Zeros may differ in their bits.
  const std::vector<double> is = read_back_as_double(stream_, got);
  const std::vector<double> right = read_back_as_double(stream_, wanted);
  for (size_t i = 0; i < is.size(); ++i)
    if (is[i] != right[i])
      fail(ExitCode::Internal, "error: wrong result of ", name_of(kind_), " on group ",
           world_.name(), " of ", world_.size(), " ranks, ", bytes(), " bytes of ",
           ferry::name_of(dtype()), "\n  is  : element ", begin + static_cast<int64_t>(i),
           " of rank ", world_.rank(), " is ", is[i], ", not ", right[i],
           "\n  why : the communication library, the network or Ferry's use of them is broken"
           "\n  try : the same with run.backend=cpu, which shows whether it is the GPUs' library");
}

}  // namespace ferry
