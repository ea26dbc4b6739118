#include "app/comm_message.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/check.h"
#include "core/host_copy.h"
#include "core/ops/elementwise.h"
#include "core/rng.h"

namespace ferry {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements on the host at a time
constexpr int kExactIntegers = 256;           // bf16 has every integer up to this one

// Adds elements [first, first + out.size()) of the numbers of `rank`: sixteen from one counter.
void add_numbers(std::span<float> out, uint64_t seed, int rank, int num_ranks, int64_t first) {
  const int largest = std::clamp(kExactIntegers / num_ranks, 1, 127);
  const auto num_values = static_cast<uint32_t>(2 * largest + 1);
  const RandomKey key{seed, 0, static_cast<uint32_t>(rank)};
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t index = static_cast<uint64_t>(first) + i;
    if (i == 0 || index % 16 == 0) words = philox(key, index / 16);
    const uint32_t byte = words[index % 16 / 4] >> (8 * (index % 4)) & 0xff;
    out[i] += static_cast<float>(static_cast<int>(byte * num_values >> 8) - largest);
  }
}

// Calls body(begin, end) for stretches of at most kPiece of `count`.
template <class Body>
void in_pieces(int64_t count, Body body) {
  for (int64_t begin = 0; begin < count; begin += kPiece)
    body(begin, std::min(begin + kPiece, count));
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

void CommMessage::fill(uint64_t seed) {
  in_pieces(input_.numel(), [&](int64_t begin, int64_t end) {
    std::vector<float> numbers(static_cast<size_t>(end - begin));
    add_numbers(numbers, seed, world_.rank(), world_.size(), begin);
    const Tensor piece = from_host(stream_, "bench", numbers, {end - begin});
    cast(stream_, input_.rows(begin, end), piece);
    stream_.synchronize();  // else all pieces would be in memory at once
  });
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
  for (const Stretch& stretch : expected())
    in_pieces(stretch.count, [&](int64_t begin, int64_t end) {
      std::vector<float> wanted(static_cast<size_t>(end - begin));
      for (int rank = stretch.first_rank; rank < stretch.end_rank; ++rank)
        add_numbers(wanted, seed, rank, world_.size(), stretch.source + begin);
      const std::vector<double> got =
          read_back_as_double(stream_, output_.rows(stretch.begin + begin, stretch.begin + end));
      for (size_t i = 0; i < wanted.size(); ++i)
        if (got[i] != static_cast<double>(wanted[i]))
          fail(ExitCode::Internal, "error: wrong result of ", name_of(kind_), " on group ",
               world_.name(), " of ", world_.size(), " ranks, ", bytes(), " bytes of ",
               ferry::name_of(dtype()), "\n  is  : element ",
               stretch.begin + begin + static_cast<int64_t>(i), " of rank ", world_.rank(), " is ",
               got[i], ", not ", wanted[i],
               "\n  why : the communication library, the network or Ferry's use of them is broken"
               "\n  try : the same with run.backend=cpu, which shows whether it is the GPUs' "
               "library");
    });
}

}  // namespace ferry
