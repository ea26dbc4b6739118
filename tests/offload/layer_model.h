#pragma once

// A small model with blocks as the real one has: an embedding, layers, a head; and one step of it.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/module.h"
#include "core/ops/elementwise.h"
#include "core/ops/gemm.h"
#include "core/ops/rmsnorm.h"
#include "offload/activation_mover.h"
#include "tests/support/devices.h"

namespace ferry::testing {

/// y = x + rmsnorm(x) * weight^T. Saves its output, too, which is then saved by the next block, and
/// tensors of other dtypes, one of them empty. Has a router whose weight is as wide as its master.
class ToyLayer final : public Module {
 public:
  static constexpr int64_t kWidth = 12, kExperts = 3;

  ToyLayer(Stream& stream, const std::string& name, DType dtype, uint64_t seed) {
    make(stream, norm_, name + "/norm", {kWidth}, dtype, seed);
    make(stream, weight_, name + "/weight", {kWidth, kWidth}, dtype, seed + 1);
    make(stream, router_, name + "/router", {kExperts, kWidth}, accumulate_dtype(dtype), seed + 2);
  }

  Tensor forward(Pass& pass, const Tensor& x) override {
    Stream& stream = pass.stream;
    const int64_t rows = x.dim(0);
    const DType wide_dtype = accumulate_dtype(x.dtype());
    const Tensor normed = like(stream, x), rstd = Tensor::empty(stream, "rstd", {rows}, wide_dtype);
    rmsnorm_forward(stream, normed, rstd, x, norm_.value, 1e-5);
    pass.tape().save(stream, Label::AttnNorm, {x, rstd});

    const Tensor wide = Tensor::empty(stream, "wide", x.shape(), wide_dtype);
    cast(stream, wide, normed);
    const Tensor logits = Tensor::empty(stream, "logits", {rows, kExperts}, wide_dtype);
    gemm(stream, logits, wide, Transpose::No, router_.value, Transpose::Yes);
    const Tensor counts = zeros(stream, {5}, DType::I32);
    const Tensor nothing = Tensor::empty(stream, "nothing", {0, kWidth}, x.dtype());
    pass.tape().save(stream, Label::Router, {wide, logits, counts, nothing, Tensor()});

    const Tensor y = like(stream, x);
    gemm(stream, y, normed, Transpose::No, weight_.value, Transpose::Yes);
    add(stream, y, y, x);
    pass.tape().save(stream, Label::QkvLinear, {normed, y});
    return y;
  }

  Tensor backward(Pass& pass, const Tensor& dy) override {
    Stream& stream = pass.stream;
    const auto [normed, y] = pass.tape().load<2>(stream, Label::QkvLinear);
    const Tensor dnormed = like(stream, normed);
    gemm(stream, weight_.grad, dy, Transpose::Yes, normed, Transpose::No, 1);
    gemm(stream, dnormed, dy, Transpose::No, weight_.value, Transpose::No);
    accumulate(stream, norm_.grad, y.rows(0, 1).reshape({kWidth}));  // so that y is read
    const auto [wide, logits, counts, nothing, none] = pass.tape().load<5>(stream, Label::Router);
    EXPECT_EQ(nothing.shape(), (Shape{0, kWidth}));
    EXPECT_FALSE(none.defined());
    gemm(stream, router_.grad, logits, Transpose::Yes, wide, Transpose::No, 1);
    const auto [x, rstd] = pass.tape().load<2>(stream, Label::AttnNorm);
    const Tensor dx = like(stream, x);
    rmsnorm_backward(stream, dx, norm_.grad, dnormed, x, rstd, norm_.value, dy);
    return dx;
  }

  void visit(const ParameterVisitor& visitor) override {
    for (Parameter* parameter : {&norm_, &weight_, &router_}) visitor(*parameter);
  }

  /// Of what it saves, without y.
  static int64_t saved_bytes(int64_t rows, DType dtype) {
    const auto narrow = static_cast<int64_t>(size_of(dtype));
    const auto wide = static_cast<int64_t>(size_of(accumulate_dtype(dtype)));
    return rows * (2 * kWidth * narrow + (1 + kWidth + kExperts) * wide) + 5 * 4;
  }
  /// Of the values that are narrower than their masters.
  static int64_t narrow_bytes(DType dtype) {
    return (kWidth + kWidth * kWidth) * static_cast<int64_t>(size_of(dtype));
  }

 private:
  static Tensor like(Stream& stream, const Tensor& x) {
    return Tensor::empty(stream, "activations", x.shape(), x.dtype());
  }
  static void make(Stream& stream, Parameter& parameter, const std::string& name,
                   const Shape& shape, DType dtype, uint64_t seed) {
    parameter.name = name;
    parameter.shape = shape;
    parameter.dtype = dtype;
    const Tensor values = random_tensor(stream, shape, dtype, seed, 0.4);
    parameter.value = Tensor::empty(stream, "parameters", shape, dtype);
    stream.copy(parameter.value, values);
    parameter.grad = zeros(stream, shape, accumulate_dtype(dtype));
  }

  Parameter norm_, weight_, router_;
};

/// Block 0 is the embedding, the last one the head; all are toy layers.
class ToyModel {
 public:
  ToyModel(Stream& stream, int layers, DType dtype) : dtype_(dtype) {
    for (int block = 0; block < layers + 2; ++block)
      blocks_.push_back(std::make_unique<ToyLayer>(stream, concat("block", block), dtype,
                                                   100 * static_cast<uint64_t>(block)));
  }

  Tensor forward(Pass& pass, Tensor x, BlockHooks& hooks) {
    for (size_t block = 0; block < blocks_.size(); ++block) {
      hooks.before_forward(pass, static_cast<int>(block));
      x = blocks_[block]->forward(pass, x);
    }
    return x;
  }
  Tensor backward(Pass& pass, Tensor dy, BlockHooks& hooks) {
    for (size_t block = blocks_.size(); block-- > 0;) {
      dy = blocks_[block]->backward(pass, dy);
      hooks.after_backward(pass, static_cast<int>(block));
    }
    return dy;
  }

  std::vector<std::vector<Parameter*>> parameters_by_block() {
    std::vector<std::vector<Parameter*>> parameters;
    for (const auto& block : blocks_) {
      parameters.emplace_back();
      block->visit([&](Parameter& parameter) { parameters.back().push_back(&parameter); });
    }
    return parameters;
  }
  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> all;
    for (const auto& block : parameters_by_block())
      all.insert(all.end(), block.begin(), block.end());
    return all;
  }
  DType dtype() const { return dtype_; }

 private:
  DType dtype_;
  std::vector<std::unique_ptr<ToyLayer>> blocks_;
};

/// Calls several hooks in turn, then functions of the test.
struct JoinedHooks final : BlockHooks {
  std::vector<BlockHooks*> all;
  std::function<void(int)> before, after;

  void before_forward(Pass& pass, int block) override {
    for (BlockHooks* hooks : all) hooks->before_forward(pass, block);
    if (before) before(block);
  }
  void after_backward(Pass& pass, int block) override {
    for (BlockHooks* hooks : all) hooks->after_backward(pass, block);
    if (after) after(block);
  }
};

/// "F0 B0 F1 B1"
inline std::vector<PassAction> actions_of(const std::string& text) {
  std::vector<PassAction> actions;
  for (size_t i = 0; i + 1 < text.size(); i += 3)
    actions.push_back({text[i] == 'F', {0, text[i + 1] - '0'}});
  return actions;
}

/// Of a micro-batch: not all have the same, as if experts dropped nothing.
inline int64_t rows_of(uint64_t seed, int micro) {
  return 64 + 8 * ((static_cast<int64_t>(seed) + micro) % 3);
}

using Values = std::vector<std::vector<double>>;

/// Outputs and gradients of the inputs, in the order of the actions, then the parameters'
/// gradients. `mover` may be null.
inline Values run_step(Stream& stream, ToyModel& model, const std::vector<PassAction>& actions,
                       ActivationMover* mover, BlockHooks& hooks, uint64_t seed = 1,
                       MemoryLedger* ledger = nullptr) {
  struct UnderWay {
    UnderWay(Stream& stream, StepTotals& totals, TapePolicy* policy, MemoryLedger* ledger)
        : tape(Tape::Mode::Record, policy, ledger), pass(stream, tape, batch, totals, {}, true) {}
    Batch batch;
    Tape tape;
    Pass pass;
  };
  for (Parameter* parameter : model.parameters()) stream.zero(parameter->grad);
  if (mover != nullptr) mover->begin_step(actions, stream);
  StepTotals totals;
  std::map<PassId, std::unique_ptr<UnderWay>> under_way;
  std::vector<Tensor> results;
  for (const auto& [is_forward, id] : actions) {
    const auto micro = static_cast<uint64_t>(id.micro);
    const int64_t rows = rows_of(seed, id.micro);
    const Tensor input = random_tensor(stream, {rows, ToyLayer::kWidth}, model.dtype(),
                                       10 * seed + micro + (is_forward ? 0 : 1000));
    if (is_forward) {
      under_way[id] = std::make_unique<UnderWay>(
          stream, totals, mover == nullptr ? nullptr : &mover->policy(id), ledger);
      results.push_back(model.forward(under_way[id]->pass, input, hooks));
      under_way[id]->tape.forward_done(stream);
    } else {
      results.push_back(model.backward(under_way[id]->pass, input, hooks));
      under_way[id]->tape.backward_done(stream);
      under_way.erase(id);
    }
  }
  if (mover != nullptr) mover->end_step(stream);
  Values values;
  for (const Tensor& result : results) values.push_back(read_back_as_double(stream, result));
  for (Parameter* parameter : model.parameters())
    values.push_back(read_back_as_double(stream, parameter->grad));
  return values;
}

/// Forward alone, nothing saved.
inline std::vector<double> evaluate(Stream& stream, ToyModel& model, BlockHooks& hooks) {
  Tape tape(Tape::Mode::Off);
  const Batch batch;
  StepTotals totals;
  Pass pass(stream, tape, batch, totals, {}, false);
  const Tensor x = random_tensor(stream, {6, ToyLayer::kWidth}, model.dtype(), 77);
  return read_back_as_double(stream, model.forward(pass, x, hooks));
}

/// What the ledger counts under `name` now.
inline MemoryLedger::Usage usage(const MemoryLedger& ledger, const std::string& name) {
  for (const auto& row : ledger.table())
    if (row.name == name) return row;
  return {};
}

/// Memory of the device without what counts as the host's, which on the CPU is in the same ledger.
inline int64_t device_bytes(Device& device) {
  int64_t bytes = device.memory().current();
  if (device.is_cpu())
    for (const char* name : {"offloaded activations", "offloaded weights", "read back"})
      bytes -= usage(device.memory(), name).current;
  return bytes;
}
inline MemoryLedger& host_ledger(Device& device) {
  return device.is_cpu() ? device.memory() : device.pinned_memory();
}

}  // namespace ferry::testing
