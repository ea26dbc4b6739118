#pragma once

// A model of fake expert layers whose tensors have more rows than are in use, as with
// moe.rank_capacity_factor: h = swiglu(x, probs), y = h * weight^T. Rows that are not in use are
// NaN, and nothing that is read back depends on them; where the next layer uses more rows than
// there are, they begin as zeros.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/ops/gemm.h"
#include "core/ops/swiglu.h"
#include "offload/activation_mover.h"
#include "tests/support/devices.h"

namespace ferry::testing {

/// The rows in use of a layer in a pass.
using RowsInUse = std::function<int64_t(PassId pass, int layer)>;

class PaddedLayers {
 public:
  static constexpr int64_t kPadded = 24, kFfn = 8, kHidden = 2 * kFfn;

  PaddedLayers(Stream& stream, DType dtype, int num_layers, RowsInUse rows_in_use,
               bool fused = false)
      : stream_(stream),
        dtype_(dtype),
        num_layers_(num_layers),
        rows_in_use_(std::move(rows_in_use)),
        fused_(fused) {
    for (int layer = 0; layer < num_layers; ++layer) {
      weights_.push_back(random_tensor(stream, {kHidden, kFfn}, dtype, 100 + layer));
      gradients_.push_back(zeros(stream, {kHidden, kFfn}, accumulate_dtype(dtype)));
    }
  }

  /// Everything that backward leaves behind: gradients of inputs by pass, then those of weights.
  /// With a mover, between its begin_step() and end_step().
  std::vector<std::vector<double>> run(std::span<const PassAction> actions,
                                       ActivationMover* mover) {
    for (const Tensor& gradient : gradients_) stream_.zero(gradient);
    std::map<PassId, Tensor> dx;
    if (mover != nullptr) mover->begin_step(actions, stream_);
    for (const PassAction& action : actions) {
      if (action.forward)
        forward(action.pass, mover);
      else
        dx[action.pass] = backward(action.pass);
    }
    if (mover != nullptr) mover->end_step(stream_);
    EXPECT_TRUE(tapes_.empty());
    std::vector<std::vector<double>> outcome;
    for (const auto& [pass, gradient] : dx)
      outcome.push_back(read_back_as_double(stream_, gradient));
    for (const Tensor& gradient : gradients_)
      outcome.push_back(read_back_as_double(stream_, gradient));
    for (const auto& values : outcome)
      EXPECT_TRUE(std::none_of(values.begin(), values.end(), [](double v) { return v != v; }));
    return outcome;
  }

  /// Called after each action of a pass.
  std::function<void(PassAction)> after_action = [](PassAction) {};

 private:
  Label saved_as(Label label) const { return fused_ ? Label::FusedGroupMlp : label; }

  Tensor padding_is_nan(const Tensor& tensor, int64_t num_rows) {
    const Tensor padding = tensor.rows(num_rows, kPadded);
    stream_.copy(padding, poisoned(stream_, padding.shape(), tensor.dtype()));
    return tensor;
  }

  void forward(PassId pass, ActivationMover* mover) {
    TapePolicy* policy = mover == nullptr ? nullptr : &mover->policy(pass);
    Tape& tape = tapes_.try_emplace(pass, Tape::Mode::Record, policy).first->second;
    const uint64_t seed = 1000 * static_cast<uint64_t>(pass.chunk) + 10 * pass.micro + 1;
    Tensor x = random_tensor(stream_, {kPadded, kHidden}, dtype_, seed);
    for (int layer = 0; layer < num_layers_; ++layer) {
      const int64_t count = rows_in_use_(pass, layer);
      const int64_t known = layer == 0 ? kPadded : rows_in_use_(pass, layer - 1);
      if (known < count) stream_.zero(x.rows(known, count));
      padding_is_nan(x, count);
      const Tensor num_rows =
          from_host(stream_, "num rows", std::vector{static_cast<int32_t>(count)}, {1});
      const Tensor offsets = from_host(stream_, "offsets", std::vector<int32_t>(kPadded, 1),
                                       {kPadded});  // as long as rows, yet no rows
      const Tensor probs = random_tensor(stream_, {kPadded}, accumulate_dtype(dtype_), seed + 5);
      tape.save(stream_, Label::Router, {probs});
      const Tensor h = Tensor::empty(stream_, "h", {kPadded, kFfn}, dtype_);
      swiglu_forward(stream_, h, x, probs);
      tape.save(stream_, saved_as(Label::ExpertFc1), {x, offsets}, num_rows);
      tape.save(stream_, saved_as(Label::MoeAct), {x, probs, {}}, num_rows);
      tape.save(stream_, saved_as(Label::ExpertFc2), {h}, num_rows);
      const Tensor y = Tensor::empty(stream_, "y", {kPadded, kHidden}, dtype_);
      gemm(stream_, y, h, Transpose::No, weights_[static_cast<size_t>(layer)], Transpose::Yes);
      x = y;
    }
    tape.save(stream_, Label::LossHead, {});
    tape.forward_done(stream_);
    after_action({true, pass});
  }

  // dx of the rows in use.
  Tensor backward(PassId pass) {
    Tape& tape = tapes_.at(pass);
    tape.load<0>(stream_, Label::LossHead);
    Tensor dy = random_tensor(stream_, {kPadded, kHidden}, dtype_, 7);
    int64_t count = 0;
    for (int layer = num_layers_ - 1; layer >= 0; --layer) {
      const auto at = static_cast<size_t>(layer);
      count = rows_in_use_(pass, layer);
      const int64_t known = layer + 1 == num_layers_ ? kPadded : rows_in_use_(pass, layer + 1);
      if (known < count) stream_.zero(dy.rows(known, count));
      const auto [h] = tape.load<1>(stream_, saved_as(Label::ExpertFc2));
      gemm(stream_, gradients_[at], dy.rows(0, count), Transpose::Yes, h.rows(0, count),
           Transpose::No, 1.0);
      const Tensor dh = Tensor::empty(stream_, "dh", {kPadded, kFfn}, dtype_);
      gemm(stream_, dh, dy, Transpose::No, weights_[at], Transpose::No);
      const auto [x, probs, nothing] = tape.load<3>(stream_, saved_as(Label::MoeAct));
      EXPECT_FALSE(nothing.defined());
      const Tensor dx = Tensor::empty(stream_, "dx", {kPadded, kHidden}, dtype_);
      swiglu_backward(stream_, dx, {}, dh, x, probs);
      const auto [same_x, offsets] = tape.load<2>(stream_, saved_as(Label::ExpertFc1));
      EXPECT_TRUE(same_x.same_memory(x));
      EXPECT_EQ(read_back<int32_t>(stream_, offsets), std::vector<int32_t>(kPadded, 1));
      tape.load<1>(stream_, Label::Router);
      dy = dx;
    }
    tape.backward_done(stream_);
    EXPECT_TRUE(tape.empty());
    tapes_.erase(pass);
    after_action({false, pass});
    return dy.rows(0, count);
  }

  Stream& stream_;
  DType dtype_;
  int num_layers_;
  RowsInUse rows_in_use_;
  bool fused_;
  std::vector<Tensor> weights_, gradients_;
  std::map<PassId, Tape> tapes_;
};

}  // namespace ferry::testing
