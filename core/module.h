#pragma once

// What a model is made of. A Module owns parameters and no activations: everything forward leaves
// for backward goes to the Tape of the Pass, so any number of micro-batches can be in flight.

#include "core/parameter.h"
#include "core/pass.h"

namespace ferry {

class Module {
 public:
  virtual ~Module() = default;
  /// Enqueues y = f(x) on pass.stream.
  virtual Tensor forward(Pass& pass, const Tensor& x) = 0;
  /// Enqueues dx from dy and adds to the parameters' gradients. Loads from the tape what forward
  /// saved, in the opposite order.
  virtual Tensor backward(Pass& pass, const Tensor& dy) = 0;
  /// Calls visitor for each parameter, in the order of forward.
  virtual void visit(const ParameterVisitor& visitor) = 0;
};

/// What happens around each block of a stage (gradient reduction, parameter gather, tracing). The
/// blocks do not know.
class BlockHooks {
 public:
  virtual ~BlockHooks() = default;
  virtual void before_forward(Pass&, int /*block_idx*/) {}
  virtual void after_backward(Pass&, int /*block_idx*/) {}
};

}  // namespace ferry
