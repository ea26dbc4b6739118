#include "moe/all_to_all_dispatcher.h"

#include <gmock/gmock.h>

#include "tests/moe/dispatcher_over_ranks.h"
#include "tests/moe/layer_over_ranks.h"
#include "tests/support/watched_group.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;

constexpr MoeLayout kLayouts[] = {{1, 1, 1}, {1, 2, 1}, {1, 4, 1}, {1, 2, 2}, {1, 1, 2}};

MoeCase layer_case(MoeCase c = {}) {
  c.dispatcher = "alltoall";
  return c;
}

TEST(AllToAllDispatcher, OrdersRowsByExpertThenRankThenToken) {
  for (const MoeLayout& layout : kLayouts)
    for (const bool with_side : {true, false})
      expect_documented_order("alltoall", layout, with_side);
}

TEST(AllToAllDispatcher, GradientsReturnBesideThePass) {
  for (const bool with_side : {true, false}) expect_gradients_return_beside("alltoall", with_side);
}

// The tokens of `from` that rank `to` has experts for.
int64_t num_sent(int from, int to, const MoeLayout& layout, int64_t num_tokens, int64_t top_k) {
  const std::vector<int32_t> chosen = choices_of(from, num_tokens, top_k);
  const auto is_on_rank = [&](int32_t e) { return e / (kExperts / layout.ep) == to / layout.etp; };
  int64_t tokens = 0;
  for (auto of_token = chosen.begin(); of_token != chosen.end(); of_token += top_k)
    tokens += std::any_of(of_token, of_token + top_k, is_on_rank);
  return tokens;
}

// What a rank gets, message by message: of each token that it has experts for one row, however many
// of them, and of its own tokens one row from each rank that has some.
TEST(AllToAllDispatcher, SendsATokenOnceToARank) {
  constexpr int64_t kNumTokens = 30, kTopK = 5, kWidth = 6;
  for (const MoeLayout& layout : kLayouts) {
    if (layout.world() == 1) continue;
    SCOPED_TRACE(concat(layout));
    run_ranks(layout.world(), [&](Group& world, Control&) {
      MoeRank rank(world, layout);
      std::vector<Shape> got;
      WatchedGroup watched(
          *rank.experts.exchange,
          [&](Stream&, const std::string&, const Tensor& out) { got.push_back(out.shape()); });
      rank.experts.exchange = &watched;
      const auto device = make_cpu_device();
      const auto stream = device->make_stream("rank");
      const Routing routing =
          routing_of(*stream, rank.index, kTopK, std::vector<double>(kNumTokens * kTopK, 0.25));
      const Tensor x = random_tensor(*stream, {kNumTokens, kWidth}, DType::F64, 2);

      int64_t arrived = 0, sent = 0;
      for (int other = 0; other < layout.world(); ++other) {
        arrived += num_sent(other, rank.index, layout, kNumTokens, kTopK);
        sent += num_sent(rank.index, other, layout, kNumTokens, kTopK);
      }
      const Shape rows_here{arrived, kWidth}, choices_here{arrived, kTopK}, rows_back{sent, kWidth},
          choices_back{sent, kTopK};
      TrainingPass training(*stream);
      Pass& pass = training.pass;
      const auto dispatcher = make_dispatcher("alltoall", kExperts, rank.experts);
      const auto messages_of = [&](const auto& call) {
        got.clear();
        call();
        return got;
      };
      Dispatched here;
      const auto dispatch = [&] {
        dispatcher->prepare(pass, routing);
        here = dispatcher->dispatch(pass, x, routing.probs);
      };
      const Shape counts{layout.world(), 2 * layout.world()};
      EXPECT_THAT(messages_of(dispatch),
                  ElementsAre(counts, rows_here, choices_here, choices_here));
      EXPECT_THAT(messages_of(dispatch), ElementsAre(rows_here, choices_here));
      EXPECT_THAT(messages_of([&] { dispatcher->combine(pass, here.rows.x, x); }),
                  ElementsAre(rows_back));
      EXPECT_THAT(messages_of([&] { dispatcher->combine_backward(pass, x); }),
                  ElementsAre(rows_here));
      EXPECT_THAT(
          messages_of([&] { dispatcher->start_dispatch_backward(pass, here.rows.x, here.probs); }),
          ElementsAre(choices_back, rows_back));
      stream->synchronize();
    });
  }
}

TEST(AllToAllDispatcher, LayerIsThatOfOneRank) {
  for (const MoeLayout& layout : kLayouts) {
    expect_same_over_ranks(layer_case(), layout, 1e-12);
    expect_same_over_ranks(layer_case({.pre_softmax = false, .shared_ffn = 8, .shared_gate = true}),
                           layout, 1e-12);
    expect_same_over_ranks(layer_case({.top_k = 8, .dtype = DType::F32}), layout, 1e-5);
  }
}

// All rows go to the experts of one rank, or of some: the others have none, forward and backward.
TEST(AllToAllDispatcher, RanksWithoutRowsTakePart) {
  for (const MoeLayout& layout : kLayouts) {
    for (const char* mode : {"all_to:[0]", "all_to:[7]"})
      expect_same_over_ranks(layer_case({.top_k = 1, .force_routing = mode}), layout, 1e-12);
    for (const char* mode : {"all_to:[2,3]", "skip:[0,1,2,3]", "power_law:2"})
      expect_same_over_ranks(layer_case({.shared_ffn = 8, .force_routing = mode}), layout, 1e-12);
  }
}

TEST(AllToAllDispatcher, SecondForwardUsesThePlanOfTheFirst) {
  for (const MoeLayout& layout : kLayouts)
    expect_same_over_ranks(layer_case({.shared_ffn = 8, .recompute = true}), layout, 1e-12);
}

TEST(AllToAllDispatcher, NeedsNoSideStream) {
  expect_same_over_ranks(layer_case({.shared_ffn = 8, .side_stream = false}), {1, 4, 1}, 1e-12);
}

TEST(AllToAllDispatcher, TokensOfAMicroBatchMayBeCutOverTensorParallelRanks) {
  for (const MoeLayout& layout : {MoeLayout{2, 2, 1}, {2, 4, 1}, {2, 2, 2}, {4, 2, 2}, {2, 1, 2}})
    for (const char* mode : {"none", "balanced", "uniform_random"})
      expect_same_over_ranks(
          layer_case({.shared_ffn = 8, .shared_gate = true, .force_routing = mode}), layout, 1e-12);
}

TEST(AllToAllDispatcher, Bf16IsCloseToOneRank) {
  expect_same_over_ranks(layer_case({.shared_ffn = 8, .dtype = DType::BF16}), {1, 4, 1}, 2e-2);
}

}  // namespace
}  // namespace ferry::testing
