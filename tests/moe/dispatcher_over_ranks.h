#pragma once

// What a dispatcher of several ranks does with rows that say where they come from.

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "moe/dispatcher.h"
#include "tests/moe/layer_over_ranks.h"
#include "tests/support/watched_group.h"

namespace ferry::testing {

/// The k experts of each token of a rank; different on every rank, and some ranks have more of
/// some.
inline std::vector<int32_t> choices_of(int rank, int64_t num_tokens, int64_t top_k) {
  std::mt19937_64 generator(static_cast<uint64_t>(rank) + 1);
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::vector<int32_t> order;
    for (int32_t e = 0; e < kExperts; ++e) order.push_back(e);
    if (t % 3 != 0) std::shuffle(order.begin(), order.end(), generator);
    chosen.insert(chosen.end(), order.begin(), order.begin() + top_k);
  }
  return chosen;
}

/// The same, of as many tokens as `probs` has k of.
inline Routing routing_of(Stream& stream, int rank, int64_t top_k,
                          const std::vector<double>& probs) {
  const int64_t num_slots = std::ssize(probs);
  const Shape shape{num_slots / top_k, top_k};
  Routing routing;
  routing.experts = from_host(stream, "experts", choices_of(rank, shape[0], top_k), shape);
  routing.probs = from_host(stream, "probs", probs, shape);
  routing.plan = RoutingPlan::empty(stream, kExperts, num_slots);
  make_routing_plan(stream, routing.plan, routing.experts);
  return routing;
}

/// A pass in training, for what needs no batch.
struct TrainingPass {
  explicit TrainingPass(Stream& stream) : pass(stream, tape, batch, totals, {}, true) {}

  Batch batch;
  Tape tape;
  StepTotals totals;
  Pass pass;
};

/// Rows of an expert come from rank 0, then rank 1, ..., and from a rank in the order of tokens;
/// all ranks that share an expert's matrices get them. Probabilities go with their rows. What comes
/// back is summed for each token, its gradients of probabilities go to their choices.
inline void expect_documented_order(const std::string& kind, const MoeLayout& layout,
                                    bool with_side) {
  SCOPED_TRACE(concat(kind, ", ", layout, with_side ? "" : ", no side stream"));
  constexpr int64_t kNumTokens = 7, kTopK = 3;
  const auto token_value = [](int rank, int64_t token) {
    return static_cast<double>(100 * rank + token);
  };
  const auto prob_value = [](int rank, int64_t slot) {
    return static_cast<double>(1000 * rank + slot);
  };
  run_ranks(layout.world(), [&](Group& world, Control&) {
    const MoeRank rank(world, layout);
    const auto device = make_cpu_device();
    device->set_poison_memory(true);
    const auto stream = device->make_stream("rank"), side = device->make_stream("side");
    std::vector<double> tokens, probs;
    for (int64_t t = 0; t < kNumTokens; ++t) tokens.push_back(token_value(rank.index, t));
    for (int64_t s = 0; s < kNumTokens * kTopK; ++s) probs.push_back(prob_value(rank.index, s));
    const Routing routing = routing_of(*stream, rank.index, kTopK, probs);
    const Tensor x = from_host(*stream, "x", tokens, {kNumTokens, 1});

    TrainingPass training(*stream);
    Pass& pass = training.pass;
    ExpertParallel experts = rank.experts;
    if (with_side) experts.side = side.get();
    const auto dispatcher = make_dispatcher(kind, kExperts, experts);
    dispatcher->prepare(pass, routing);
    const Dispatched sent = dispatcher->dispatch(pass, x, routing.probs);

    std::vector<double> want_rows, want_probs, want_offsets = {0};
    const int64_t first = rank.experts.first_local(kExperts);
    for (int64_t e = first; e < first + rank.experts.num_local(kExperts); ++e) {
      for (int from = 0; from < layout.world(); ++from) {
        const std::vector<int32_t> chosen = choices_of(from, kNumTokens, kTopK);
        for (int64_t s = 0; s < kNumTokens * kTopK; ++s) {
          if (chosen[static_cast<size_t>(s)] != e) continue;
          want_rows.push_back(token_value(from, s / kTopK));
          want_probs.push_back(prob_value(from, s));
        }
      }
      want_offsets.push_back(static_cast<double>(want_rows.size()));
    }
    EXPECT_EQ(read_back_as_double(*stream, sent.rows.x), want_rows);
    EXPECT_EQ(read_back_as_double(*stream, sent.probs), want_probs);
    EXPECT_EQ(read_back_as_double(*stream, sent.offsets), want_offsets);

    // Every row that returns is the token itself, k * etp times.
    const double copies = kTopK * layout.etp;
    std::vector<double> want_y, want_dprobs;
    for (const double token : tokens) want_y.push_back(copies * token + 0.5);
    for (const double prob : probs) want_dprobs.push_back(layout.etp * prob);
    const Tensor half =
        from_host(*stream, "half", std::vector<double>(kNumTokens, 0.5), {kNumTokens, 1});
    EXPECT_EQ(read_back_as_double(*stream, dispatcher->combine(pass, sent.rows.x, half)), want_y);
    EXPECT_EQ(read_back_as_double(*stream, dispatcher->combine_backward(pass, x)), want_rows);
    const auto returning = dispatcher->start_dispatch_backward(pass, sent.rows.x, sent.probs);
    const Tensor dprobs = dispatcher->probs_gradient(pass, returning);
    EXPECT_EQ(dprobs.shape(), (Shape{kNumTokens, kTopK}));
    EXPECT_EQ(read_back_as_double(*stream, dprobs), want_dprobs);
    EXPECT_EQ(read_back_as_double(*stream, dispatcher->x_gradient(pass, returning, half)), want_y);
  });
}

/// Gradients of dispatch return on the stream beside; all else of the tokens goes on that of the
/// pass. So does everything where there is none beside. What they send lives until the stream of
/// the pass has waited for them: it would wait sooner if it got that memory back sooner.
inline void expect_gradients_return_beside(const std::string& kind, bool with_side) {
  constexpr int64_t kNumTokens = 5, kTopK = 2;
  const MoeLayout layout{1, 2, 1};
  run_ranks(layout.world(), [&](Group& world, Control&) {
    MoeRank rank(world, layout);
    std::vector<std::string> streams;
    std::vector<std::weak_ptr<Storage>> sent;
    WatchedGroup watched(
        *rank.experts.exchange,
        [&](Stream& stream, const std::string&, const Tensor&) {
          streams.push_back(stream.name());
        },
        [&](const Tensor& in) { sent.push_back(in.storage()); });
    rank.experts.exchange = &watched;
    const auto device = make_cpu_device();
    const auto stream = device->make_stream("rank"), side = device->make_stream("side");
    if (with_side) rank.experts.side = side.get();
    const Routing routing =
        routing_of(*stream, rank.index, kTopK, std::vector<double>(kNumTokens * kTopK, 0.5));
    const Tensor x = random_tensor(*stream, {kNumTokens, 3}, DType::F64, 2);

    TrainingPass training(*stream);
    Pass& pass = training.pass;
    const auto dispatcher = make_dispatcher(kind, kExperts, rank.experts);
    dispatcher->prepare(pass, routing);
    streams.clear();  // the plan
    const Dispatched here = dispatcher->dispatch(pass, x, routing.probs);
    dispatcher->combine(pass, here.rows.x, {});
    dispatcher->combine_backward(pass, x);
    EXPECT_THAT(streams, ::testing::Each("rank"));
    EXPECT_GE(streams.size(), 4u);

    streams.clear();
    sent.clear();
    auto returning = dispatcher->start_dispatch_backward(pass, here.rows.x, here.probs);
    const char* beside = with_side ? "side" : "rank";
    EXPECT_THAT(streams, ::testing::ElementsAre(beside, beside));
    const auto num_sent_alive = [&] {
      stream->synchronize();
      side->synchronize();
      return std::count_if(sent.begin(), sent.end(),
                           [](const auto& message) { return !message.expired(); });
    };
    EXPECT_EQ(num_sent_alive(), 2);
    dispatcher->probs_gradient(pass, returning);
    dispatcher->x_gradient(pass, returning, {});
    EXPECT_EQ(streams.size(), 2u);
    returning = {};
    EXPECT_EQ(num_sent_alive(), 0);
  });
}

}  // namespace ferry::testing
