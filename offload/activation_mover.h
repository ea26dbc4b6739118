#pragma once

// A way to keep saved activations elsewhere than on the device: offload of named modules, of whole
// layers, or the paged stash. The movers exclude each other, so a rank has at most one of each kind
// that a configuration allows; PassPolicy joins them.
//
// A *pass* is one micro-batch on its way through one chunk (virtual stage) of the rank's model.
// Everything is bound to its name, (chunk, micro-batch), never to the order of calls.

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "core/tape.h"

namespace ferry {

struct PassId {
  int chunk = 0;
  int micro = 0;
  auto operator<=>(const PassId&) const = default;
};

/// One pass forward or backward, as the schedule of this rank has it.
struct PassAction {
  bool forward = true;
  PassId pass;
  bool operator==(const PassAction&) const = default;
};

/// What a step moved for one module, on this rank.
struct ModuleTraffic {
  int64_t d2h_bytes = 0;  // device to host
  int64_t h2d_bytes = 0;  // host to device
  double exposed_s = 0;   // that the compute stream stood still for these copies
};
using TrafficByModule = std::map<std::string, ModuleTraffic>;

class ActivationMover {
 public:
  virtual ~ActivationMover() = default;
  /// A training step begins: the passes of this rank in the order of its schedule. `compute` is
  /// where they will run.
  virtual void begin_step(std::span<const PassAction> actions, Stream& compute) = 0;
  /// The policy of a pass that is about to go forward; valid until the step ends.
  virtual TapePolicy& policy(PassId pass) = 0;
  /// All passes are enqueued.
  virtual void end_step(Stream& compute) = 0;
  /// What the last step moved. Waits for its copies.
  virtual TrafficByModule traffic() const = 0;

  // Passes as graphs (core/graph.h): one pass is recorded, its launches stand for it and others. A
  // mover that cannot be part of a graph has no need of these.

  /// What moves is fixed, so a pass may be recorded from the next step on.
  virtual bool is_settled() const { return true; }
  /// The next pass is recorded. Waits on the host for what is on its way.
  virtual void before_recording() {}
  /// The recorded pass was launched, as this one.
  virtual void launched(PassId) {}
  /// A graph of a part of the model was launched, inside a pass that is none.
  virtual void part_launched(Stream& /*compute*/) {}
};

}  // namespace ferry
