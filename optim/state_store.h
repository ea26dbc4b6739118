#pragma once

// Where optimizer state lives, and so where updates are made. The optimizer (optim/optimizer.h)
// knows a norm, a verdict and scalars; the rule (optim/update_rule.h) knows arithmetic. A store
// brings gradients to the state and values back; a store that keeps state on the host is another
// implementation (offload/hybrid_device_optimizer.h).
//
// A step is
//   begin_step; gradients_final for each block, as early as they are; update
// and then the next forward calls wait_values before each block.

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/copy_on_write.h"
#include "core/parameter.h"
#include "optim/update_rule.h"

namespace ferry {

class StateStore {
 public:
  virtual ~StateStore() = default;
  /// The state of a parameter, in the memory of the device or of the host. All updates are done.
  virtual const ParameterState& state(const Parameter& parameter) = 0;
  /// The state was written, by work on `stream` that is done or by the host: rounds the value from
  /// the master, after which it is ready on `stream`.
  virtual void publish(Stream& stream, const Parameter& parameter) = 0;

  /// Gradients are about to be zeroed: `stream` waits until those of the step before were read, and
  /// what gradients_final() said is forgotten.
  virtual void begin_step(Stream& /*stream*/) {}
  /// The gradients of the block's parameters of this axis have their final values at `final`.
  virtual void gradients_final(int /*block*/, ReduceAxis /*axis*/, const Event& /*final*/) {}
  /// Update of all parameters by gradients that are all final on `stream`. Values may be ready
  /// later than `stream`: see wait_values.
  virtual void update(Stream& stream, const UpdateRule& rule, const UpdateScalars& scalars) = 0;
  /// Makes `stream` wait for the block's values of the last update. May block the host until they
  /// are on their way; throws the error of an update that failed. For the first stream that needs
  /// them: others wait for that one.
  virtual void wait_values(Stream& /*stream*/, int /*block*/) {}
  /// The same for all blocks.
  virtual void wait_all_values(Stream& /*stream*/) {}
  /// True if update() returns before all updates are made, so that wait_values may block the host.
  virtual bool updates_later() const { return false; }

  /// From now on, before state of a parameter that is_guarded() changes, guard->before_change() is
  /// called, by any thread. What moves such state waits until the guard's reader has ended. Between
  /// steps; all updates are done.
  virtual void set_guard(std::shared_ptr<CopyOnWrite> /*guard*/) {}
  /// Whether the state is in host memory that a guard is asked about. All other state changes on
  /// the stream of update() only.
  virtual bool is_guarded(const Parameter& /*parameter*/) const { return false; }
};

/// Types of the moments on the device, where less than full precision will do; unset: full.
using MomentTypes = std::vector<std::optional<DType>>;

/// Everything on the device of the parameters.
class DeviceStateStore final : public StateStore {
 public:
  /// Masters are the values as they are now; moments are zero. `rule` says how many; `types` may be
  /// empty: all in full precision.
  DeviceStateStore(Stream& stream, const std::vector<Parameter*>& parameters,
                   const UpdateRule& rule, const MomentTypes& types = {});
  const ParameterState& state(const Parameter& parameter) override {
    return states_.at(&parameter);
  }
  void publish(Stream& stream, const Parameter& parameter) override;
  void update(Stream& stream, const UpdateRule& rule, const UpdateScalars& scalars) override;

 private:
  std::vector<Parameter*> parameters_;
  std::map<const Parameter*, ParameterState> states_;
};

/// `scalars` for this parameter: no decay where it has none.
UpdateScalars scalars_of(const Parameter& parameter, UpdateScalars scalars);
/// The type of moment `i` on the device, of a parameter whose state has the full precision `full`.
DType moment_type(DType full, const MomentTypes& types, size_t i);
/// Memory on the device for the state of a parameter; contents are as in DeviceStateStore.
ParameterState make_device_state(Stream& stream, const Parameter& parameter, const UpdateRule& rule,
                                 const MomentTypes& types);

}  // namespace ferry
