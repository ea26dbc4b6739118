#pragma once

// Expert parallelism: the experts of a layer are dealt out to ep ranks, in order and equally many
// each, and the matrices of one expert are cut over etp ranks (expert tensor parallelism). The
// ranks of both axes exchange tokens; each of them brings its own. Rank of the exchange group:
// etp_rank + etp_size * ep_rank.

#include "core/comm/group.h"

namespace ferry {

struct ExpertParallel {
  Group* exchange = nullptr;  // null with one rank, and in a model that is described but not run
  int ep_rank = 0;
  int ep_size = 1;
  int etp_rank = 0;
  int etp_size = 1;
  /// What the host has to know about the exchange is fetched here, beside the stream of the pass,
  /// so that waiting for other ranks' counts does not hold up this rank's work. One stream serves
  /// all layers. Null: on the stream of the pass.
  Stream* side = nullptr;

  int size() const { return ep_size * etp_size; }
  int64_t num_local(int64_t experts) const { return experts / ep_size; }
  int64_t first_local(int64_t experts) const { return ep_rank * num_local(experts); }
};

}  // namespace ferry
