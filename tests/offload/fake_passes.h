#pragma once

// A model of fake layers for tests of movers: each layer saves a tensor for each of some labels,
// with a label of nobody's in between, and reads all of them back in backward.

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "core/host_copy.h"
#include "core/stream_cpu.h"
#include "offload/activation_mover.h"
#include "tests/support/devices.h"

namespace ferry::testing {

class FakePasses {
 public:
  /// Tensor i of a layer has sizes[i] elements and label labels[i].
  FakePasses(Stream& stream, ActivationMover& mover, int layers, std::vector<Label> labels,
             std::vector<int64_t> sizes)
      : stream_(stream),
        mover_(mover),
        layers_(layers),
        labels_(std::move(labels)),
        sizes_(std::move(sizes)) {}

  void forward(PassId pass) {
    Tape& tape = tapes_.try_emplace(pass, Tape::Mode::Record, &mover_.policy(pass)).first->second;
    for (int layer = 0; layer < layers_; ++layer) {
      for (size_t i = 0; i < labels_.size(); ++i) {
        Tensor x = Tensor::empty(stream_, name_of(labels_[i]), {sizes_[i]}, DType::F32);
        fill(x, value(pass, layer, i));
        tape.save(stream_, labels_[i], {x});
        tape.save(stream_, Label::Router, {small(1.0f)});
      }
    }
    tape.forward_done(stream_);
  }

  /// Calls used(layer, i) before each tensor is read back and after it was.
  template <class Before, class After>
  void backward(PassId pass, Before before, After after) {
    Tape& tape = tapes_.at(pass);
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      for (size_t i = labels_.size(); i-- > 0;) {
        before(layer, i);
        tape.load<1>(stream_, Label::Router);
        const auto [x] = tape.load<1>(stream_, labels_[i]);
        expect_filled(x, value(pass, layer, i));
        after(layer, i);
      }
    }
    tape.backward_done(stream_);
    EXPECT_TRUE(tape.empty());
    tapes_.erase(pass);
  }
  void backward(PassId pass) {
    backward(
        pass, [](int, size_t) {}, [](int, size_t) {});
  }

  /// Runs a whole step; the values that come back are checked.
  void step(std::span<const PassAction> actions) {
    mover_.begin_step(actions, stream_);
    for (const PassAction& action : actions)
      action.forward ? forward(action.pass) : backward(action.pass);
    mover_.end_step(stream_);
    stream_.synchronize();
  }

 private:
  static float value(PassId pass, int layer, size_t i) {
    return static_cast<float>(1000 * pass.chunk + 100 * pass.micro + 10 * layer) +
           static_cast<float>(i);
  }
  Tensor small(float number) {
    const Tensor x = Tensor::empty(stream_, "small", {1}, DType::F32);
    fill(x, number);
    return x;
  }
  void fill(const Tensor& x, float number) {
    enqueue_cpu(stream_, [x, number] { std::fill_n(x.data<float>(), x.numel(), number); });
  }
  void expect_filled(const Tensor& x, float number) {
    enqueue_cpu(stream_, [x, number] {
      for (int64_t i = 0; i < x.numel(); ++i) ASSERT_EQ(x.data<float>()[i], number) << i;
    });
  }

  Stream& stream_;
  ActivationMover& mover_;
  int layers_;
  std::vector<Label> labels_;
  std::vector<int64_t> sizes_;
  std::map<PassId, Tape> tapes_;
};

inline std::vector<PassAction> one_by_one(int num_micro) {
  std::vector<PassAction> actions;
  for (int micro = 0; micro < num_micro; ++micro) {
    actions.push_back({true, {0, micro}});
    actions.push_back({false, {0, micro}});
  }
  return actions;
}

/// Rank 0 of two: F0 F1 B0 F2 B1 ...
inline std::vector<PassAction> first_of_two_stages(int num_micro) {
  std::vector<PassAction> actions{{true, {0, 0}}};
  for (int micro = 0; micro < num_micro; ++micro) {
    if (micro + 1 < num_micro) actions.push_back({true, {0, micro + 1}});
    actions.push_back({false, {0, micro}});
  }
  return actions;
}

}  // namespace ferry::testing
