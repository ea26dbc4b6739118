#include "core/ops/topk_gate.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/devices.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

GateResult empty_result(Stream& stream, int64_t tokens, int64_t experts, int64_t top_k,
                        DType dtype) {
  return {poisoned(stream, {tokens, top_k}, dtype), poisoned(stream, {tokens, top_k}, DType::I32),
          poisoned(stream, {tokens, experts}, dtype), poisoned(stream, {tokens}, dtype)};
}

// The gate has no BF16: its tensors are of accumulate().
class TopkGateOp : public DeviceTest {
 protected:
  double tolerance() const { return 32 * epsilon_of(accumulate()); }
  GateResult result(int64_t tokens, int64_t experts, int64_t top_k) {
    return empty_result(stream(), tokens, experts, top_k, accumulate());
  }
  Tensor numbers(const std::vector<double>& values, const Shape& shape) {
    return tensor_of(stream(), values, shape, accumulate());
  }
  Tensor random_numbers(const Shape& shape, uint64_t seed, double scale = 1) {
    return random_tensor(stream(), shape, accumulate(), seed, scale);
  }
  std::vector<double> values(const Tensor& tensor) { return read_back_as_double(stream(), tensor); }
};

TEST_P(TopkGateOp, PostSoftmaxOfOneToken) {
  const GateResult gate = result(1, 4, 2);
  topk_gate_forward(stream(), gate,
                    numbers({0, std::log(3.0), std::log(2.0), std::log(6.0)}, {1, 4}), false);
  EXPECT_THAT(read_back<int32_t>(stream(), gate.experts), ElementsAre(3, 1));
  testing::expect_close(values(gate.probs), {6.0 / 9, 3.0 / 9}, tolerance(), 0);
  testing::expect_close(values(gate.scores), {1.0 / 12, 3.0 / 12, 2.0 / 12, 6.0 / 12}, tolerance(),
                        0);
  testing::expect_close(values(gate.lse), {std::log(12.0)}, tolerance(), 0);
}

TEST_P(TopkGateOp, PreSoftmaxOfOneToken) {
  const GateResult gate = result(1, 4, 2);
  topk_gate_forward(stream(), gate,
                    numbers({0, std::log(3.0), std::log(2.0), std::log(6.0)}, {1, 4}), true);
  EXPECT_THAT(read_back<int32_t>(stream(), gate.experts), ElementsAre(3, 1));
  testing::expect_close(values(gate.probs), {6.0 / 12, 3.0 / 12}, tolerance(), 0);
}

TEST_P(TopkGateOp, LowestExpertWinsATie) {
  const GateResult gate = result(3, 5, 3);
  topk_gate_forward(stream(), gate,
                    numbers({1, 2, 2, 1, 2, 0, 0, 0, 0, 0, -1, 5, -1, 5, -1}, {3, 5}), false);
  EXPECT_THAT(read_back<int32_t>(stream(), gate.experts), ElementsAre(1, 2, 4, 0, 1, 2, 1, 3, 0));
}

TEST_P(TopkGateOp, LargeLogitsDoNotOverflow) {
  const GateResult gate = result(2, 3, 2);
  topk_gate_forward(stream(), gate, numbers({1e4, -1e4, 1e4, -3e4, -3e4, -4e4}, {2, 3}), false);
  testing::expect_close(values(gate.probs), {.5, .5, .5, .5}, tolerance(), 0);
  testing::expect_close(values(gate.scores), {.5, 0, .5, .5, .5, 0}, tolerance(), 0);
  testing::expect_close(values(gate.lse), {1e4 + std::log(2.0), -3e4 + std::log(2.0)}, tolerance(),
                        0);
}

TEST_P(TopkGateOp, NanLogitsStillChooseDistinctExpertsInRange) {
  const GateResult gate = result(2, 6, 6);
  std::vector<double> logits(12, std::nan(""));
  for (int i = 6; i < 12; i += 2) logits[i] = i;
  topk_gate_forward(stream(), gate, numbers(logits, {2, 6}), false);
  std::vector<int32_t> chosen = read_back<int32_t>(stream(), gate.experts);
  std::sort(chosen.begin(), chosen.begin() + 6);
  std::sort(chosen.begin() + 6, chosen.end());
  EXPECT_THAT(chosen, ElementsAre(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5));
}

TEST_P(TopkGateOp, IsCloseToFloat64) {
  for (const int64_t tokens : {0, 1, 65, 129}) {
    for (const int64_t experts : {1, 8, 63, 64, 65, 128}) {
      for (const bool pre_softmax : {false, true}) {
        const int64_t top_k = std::min<int64_t>(experts, 8);
        SCOPED_TRACE(concat(tokens, " tokens, ", experts, " experts, pre ", pre_softmax));
        const Tensor logits = random_numbers({tokens, experts}, 1, 6);
        const Tensor dprobs = random_numbers({tokens, top_k}, 2);
        const Tensor expert_gradient = random_numbers({experts}, 3);
        const Tensor dlogits = output({tokens, experts}, accumulate());
        const GateResult gate = result(tokens, experts, top_k);
        topk_gate_forward(stream(), gate, logits, pre_softmax);
        topk_gate_backward(stream(), dlogits, dprobs, gate, expert_gradient, .25, pre_softmax);

        const GateResult want = empty_result(reference(), tokens, experts, top_k, DType::F64);
        const Tensor want_dlogits = reference_output({tokens, experts});
        topk_gate_forward(reference(), want, exact(logits), pre_softmax);
        topk_gate_backward(reference(), want_dlogits, exact(dprobs), want, exact(expert_gradient),
                           .25, pre_softmax);
        EXPECT_EQ(read_back<int32_t>(stream(), gate.experts),
                  read_back<int32_t>(reference(), want.experts));
        expect_close(gate.probs, want.probs, tolerance(), 0);
        expect_close(gate.scores, want.scores, tolerance(), 0);
        expect_close(gate.lse, want.lse, tolerance(), tolerance());
        expect_close(dlogits, want_dlogits, tolerance(), tolerance());
      }
    }
  }
}

TEST_P(TopkGateOp, BalancedRoutingHasLossOne) {
  const int64_t tokens = 12, experts = 4, top_k = 2;
  const Tensor total = numbers({.5}, {1}), gradient = output({experts}, accumulate());
  load_balance_loss(stream(), total, gradient, numbers({3, 3, 3, 3}, {experts}),
                    ints({6, 6, 6, 6}, {experts}), tokens, top_k, 2);
  testing::expect_close(values(total), {1.5}, tolerance(), 0);
  testing::expect_close(values(gradient), std::vector<double>(4, 2 * 4.0 / (2 * 144) * 6),
                        tolerance(), 0);
}

TEST_P(TopkGateOp, LoadBalanceLossIsTheFormula) {
  const Tensor total = numbers({0}, {1}), gradient = output({3}, accumulate());
  load_balance_loss(stream(), total, gradient, numbers({1, 2, 5}, {3}), ints({0, 1, 7}, {3}), 8, 1,
                    .125);
  const double factor = 3.0 / 64;
  testing::expect_close(values(total), {factor * (2 * 1 + 5 * 7)}, tolerance(), 0);
  testing::expect_close(values(gradient), {0, .125 * factor, .125 * factor * 7}, tolerance(), 0);
}

TEST_P(TopkGateOp, RefusesWrongArguments) {
  const GateResult gate = result(3, 4, 2);
  const Tensor logits = random_numbers({3, 4}, 1);
  EXPECT_THAT(
      [&] {
        topk_gate_forward(stream(), gate, random_numbers({3, 5}, 1), false);
      },
      ThrowsMessage<Error>(HasSubstr("logits has shape [3, 5], not [3, 4]")));
  EXPECT_THAT([&] { topk_gate_forward(stream(), result(3, 4, 5), logits, false); },
              ThrowsMessage<Error>(HasSubstr("top_k is 5 of 4 experts")));
  EXPECT_THAT(
      [&] {
        topk_gate_forward(stream(), result(3, 64, 33), random_numbers({3, 64}, 1), false);
      },
      ThrowsMessage<Error>(HasSubstr("top_k is 33 of 64 experts")));
  EXPECT_THAT(
      [&] {
        topk_gate_forward(stream(), empty_result(stream(), 3, 4, 2, DType::BF16), logits, false);
      },
      ThrowsMessage<Error>(HasSubstr("scores are bf16")));
  EXPECT_THAT(
      [&] { topk_gate_backward(stream(), gate.scores, gate.probs, gate, Tensor(), 0, false); },
      ThrowsMessage<Error>(HasSubstr("dlogits are the memory of the scores")));
  EXPECT_THAT(
      [&] {
        load_balance_loss(stream(), numbers({0}, {1}), random_numbers({4}, 1),
                          random_numbers({4}, 1), output({4}, DType::I32), 0, 2, 1);
      },
      ThrowsMessage<Error>(HasSubstr("0 tokens, top_k 2")));
}

INSTANTIATE_TEST_SUITE_P(Devices, TopkGateOp, device_cases(), case_name);

// loss = <probs, dprobs> + <scores, expert_gradient of each token> + z * sum of lse^2.
class TopkGateGradients : public CpuTest {
 protected:
  void expect_right(bool pre_softmax, bool with_losses) {
    const DType f64 = DType::F64;
    const int64_t tokens = 4, experts = 7, top_k = 3;
    const double z = with_losses ? .125 : 0;
    const Tensor logits = random_tensor(stream(), {tokens, experts}, f64, 1, 2);
    const Tensor dprobs = random_tensor(stream(), {tokens, top_k}, f64, 2);
    const Tensor expert_gradient =
        with_losses ? random_tensor(stream(), {experts}, f64, 3) : Tensor();
    const Tensor dlogits = poisoned(stream(), {tokens, experts}, f64);
    const GateResult gate = empty_result(stream(), tokens, experts, top_k, f64);
    const auto loss = [&] {
      topk_gate_forward(stream(), gate, logits, pre_softmax);
      double sum = dot(stream(), gate.probs, dprobs) + z * dot(stream(), gate.lse, gate.lse);
      for (int64_t t = 0; with_losses && t < tokens; ++t) {
        sum += dot(stream(), gate.scores.rows(t, t + 1), expert_gradient);
      }
      return sum;
    };
    loss();
    topk_gate_backward(stream(), dlogits, dprobs, gate, expert_gradient, z, pre_softmax);
    expect_element_gradients(stream(), {"logits", logits, dlogits}, loss);
  }
};

TEST_F(TopkGateGradients, PostSoftmax) { expect_right(false, false); }
TEST_F(TopkGateGradients, PreSoftmax) { expect_right(true, false); }
TEST_F(TopkGateGradients, PostSoftmaxWithLosses) { expect_right(false, true); }
TEST_F(TopkGateGradients, PreSoftmaxWithLosses) { expect_right(true, true); }

}  // namespace
}  // namespace ferry::testing
