#pragma once

// A model that is small enough to compute by hand: stage s is y = weight[s] * x + bias(s, micro),
// and the loss is sum(y * y) / 2 after the last stage.

#include <chrono>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/stream_cpu.h"
#include "core/tensor.h"
#include "pipeline/executor.h"

namespace ferry::testing {

inline const MessageType kAffineMessage{{3, 2}, DType::F64};

/// What the model of `num_stages` stages does to one element.
struct AffineStage {
  int stage;
  double weight() const { return 1.0 + 0.25 * ((stage * 5) % 7 - 3); }
  double bias(int micro) const { return 0.1 * stage - 0.3 * micro; }
};

/// Element i of the input of a micro-batch.
inline double affine_input(int micro, int64_t i) { return 1.0 + 0.5 * micro - 0.2 * double(i); }

struct AffineResult {
  std::map<int, double> dweight;  // of each stage, summed over micro-batches
  std::map<int, double> loss;     // of each micro-batch
  std::map<int, double> dinput;   // of each micro-batch, summed over elements
  bool operator==(const AffineResult&) const = default;
};

/// Everything on one rank, one micro-batch after the other.
inline AffineResult affine_reference(int num_stages, int num_micro) {
  AffineResult result;
  const int64_t numel = kAffineMessage.shape.numel();
  for (int micro = 0; micro < num_micro; ++micro) {
    std::vector<std::vector<double>> x(static_cast<size_t>(num_stages) + 1);
    for (int64_t i = 0; i < numel; ++i) x[0].push_back(affine_input(micro, i));
    for (int s = 0; s < num_stages; ++s)
      for (const double value : x[static_cast<size_t>(s)])
        x[static_cast<size_t>(s) + 1].push_back(AffineStage{s}.weight() * value +
                                                AffineStage{s}.bias(micro));
    std::vector<double> dy = x.back();
    for (const double y : x.back()) result.loss[micro] += y * y / 2;
    for (int s = num_stages - 1; s >= 0; --s) {
      double dweight = 0;
      for (size_t i = 0; i < dy.size(); ++i) dweight += dy[i] * x[static_cast<size_t>(s)][i];
      result.dweight[s] += dweight;
      for (double& value : dy) value *= AffineStage{s}.weight();
    }
    for (const double value : dy) result.dinput[micro] += value;
  }
  return result;
}

/// The stages of one rank, on a CPU stream. Passes last a random time.
class AffineWork final : public StageWork {
 public:
  AffineWork(Stream& compute, int rank, int num_ranks, int num_chunks, int max_delay_us)
      : compute_(compute),
        rank_(rank),
        num_ranks_(num_ranks),
        num_stages_(num_ranks * num_chunks),
        max_delay_us_(max_delay_us),
        random_(static_cast<unsigned>(rank)) {}

  Tensor forward(int chunk, int micro, const Tensor& x) override {
    const AffineStage stage{chunk * num_ranks_ + rank_};
    CHECK(x.defined() == (stage.stage > 0), "only the first stage has no input");
    const bool last = stage.stage == num_stages_ - 1;
    const Tensor y = output();
    const Tensor input = x.defined() ? x : output();
    saved_[{chunk, micro}] = {input, y};
    enqueue_cpu(compute_, [=, this, is_given = x.defined(), delay = delay()] {
      std::this_thread::sleep_for(delay);
      double loss = 0;
      for (int64_t i = 0; i < y.numel(); ++i) {
        if (!is_given) input.data<double>()[i] = affine_input(micro, i);
        const double value = stage.weight() * input.data<double>()[i] + stage.bias(micro);
        y.data<double>()[i] = value;
        loss += value * value / 2;
      }
      if (last) result_.loss[micro] = loss;
    });
    return last ? Tensor() : y;
  }

  Tensor backward(int chunk, int micro, const Tensor& dy) override {
    const AffineStage stage{chunk * num_ranks_ + rank_};
    CHECK(dy.defined() == (stage.stage < num_stages_ - 1), "only the last stage has no gradient");
    const auto [x, y] = saved_.extract({chunk, micro}).mapped();
    const Tensor dx = output();
    // The derivative of the loss with respect to y is y.
    const Tensor gradient = dy.defined() ? dy : y;
    enqueue_cpu(compute_, [=, this, x = x, delay = delay()] {
      std::this_thread::sleep_for(delay);
      double dweight = 0, sum = 0;
      for (int64_t i = 0; i < dx.numel(); ++i) {
        dweight += gradient.data<double>()[i] * x.data<double>()[i];
        dx.data<double>()[i] = gradient.data<double>()[i] * stage.weight();
        sum += dx.data<double>()[i];
      }
      result_.dweight[stage.stage] += dweight;
      if (stage.stage == 0) result_.dinput[micro] = sum;
    });
    return stage.stage == 0 ? Tensor() : dx;
  }

  /// What this rank has computed; after the compute stream was waited for.
  const AffineResult& result() const { return result_; }
  /// Forward passes without a backward pass.
  size_t num_in_flight() const { return saved_.size(); }

 private:
  Tensor output() {
    return Tensor::empty(compute_, "affine", kAffineMessage.shape, kAffineMessage.dtype);
  }
  std::chrono::microseconds delay() {
    return std::chrono::microseconds(
        max_delay_us_ == 0 ? 0
                           : static_cast<int>(random_() % static_cast<unsigned>(max_delay_us_)));
  }

  Stream& compute_;
  int rank_, num_ranks_, num_stages_, max_delay_us_;
  std::mt19937 random_;
  std::map<std::pair<int, int>, std::pair<Tensor, Tensor>> saved_;  // x and y of a pass in flight
  AffineResult result_;  // touched by the stream's thread
};

/// The part of the reference that a rank computes.
inline AffineResult part_of_rank(const AffineResult& all, int rank, int num_ranks) {
  AffineResult part;
  for (const auto& [stage, dweight] : all.dweight)
    if (stage % num_ranks == rank) part.dweight[stage] = dweight;
  if (rank == 0) part.dinput = all.dinput;
  if (rank == num_ranks - 1) part.loss = all.loss;
  return part;
}

}  // namespace ferry::testing
