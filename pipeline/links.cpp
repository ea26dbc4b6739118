#include "pipeline/links.h"

#include <algorithm>

#include "core/check.h"
#include "core/tensor.h"

namespace ferry {
namespace {

// Edge i of the ring joins rank i and the rank behind it.
struct Edge {
  int before;
  int behind;
};

// Edges of one round share no rank, so that one split makes the groups of all of them.
std::vector<std::vector<Edge>> rounds_of(int size, bool ring) {
  std::vector<std::vector<Edge>> rounds(2);
  for (int i = 0; i + 1 < size; ++i) rounds[static_cast<size_t>(i % 2)].push_back({i, i + 1});
  // The edge that closes a ring of odd size meets both of the other rounds.
  if (ring) {
    if (size % 2 != 0) rounds.emplace_back();
    rounds.back().push_back({size - 1, 0});
  }
  std::erase_if(rounds, [](const std::vector<Edge>& round) { return round.empty(); });
  return rounds;
}

}  // namespace

PipelineLinks::PipelineLinks(Group& pp, Device& device, int num_chunks)
    : rank_(pp.rank()), size_(pp.size()), num_chunks_(num_chunks) {
  CHECK(num_chunks >= 1, num_chunks, " chunks");
  if (size_ == 1) return;
  for (const std::vector<Edge>& round : rounds_of(size_, num_chunks > 1)) {
    const auto own = std::find_if(round.begin(), round.end(), [this](const Edge& edge) {
      return edge.before == rank_ || edge.behind == rank_;
    });
    const bool in_round = own != round.end();
    const int color = in_round ? own->before : -1;
    const bool before = in_round && own->before == rank_;
    for (const bool activations : {true, false}) {
      std::string name = "pipeline link";
      if (in_round)
        name = concat(pp.name(), activations ? " activations " : " gradients ",
                      activations ? own->before : own->behind, '>',
                      activations ? own->behind : own->before);
      std::unique_ptr<Group> group = pp.split(color, name);
      if (!in_round) continue;
      CHECK(group != nullptr && group->size() == 2, "group ", name, " has not two ranks");
      const int peer = 1 - group->rank();
      links_.push_back(std::make_unique<PipelineLink>(
          PipelineLink{std::move(group), peer, device.make_stream(name)}));
      const PipelineLink& link = *links_.back();
      (activations ? (before ? activations_out_ : activations_in_)
                   : (before ? gradients_in_ : gradients_out_)) = &link;
      // Ranks of an edge are in the same round here, so neither waits for a third.
      const Tensor byte = Tensor::empty(*link.stream, "pipeline link", {1}, DType::U8);
      link.stream->zero(byte);
      if (before == activations)
        link.group->send(*link.stream, byte, peer);
      else
        link.group->receive(*link.stream, byte, peer);
      link.stream->synchronize();
    }
  }
}

PipelineLinks::~PipelineLinks() {
  // The end of a group may wait for its other rank, so all ranks take the same order here.
  while (!links_.empty()) links_.pop_back();
}

}  // namespace ferry
