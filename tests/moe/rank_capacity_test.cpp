#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <optional>

#include "moe/moe_layer.h"
#include "tests/moe/dispatcher_over_ranks.h"
#include "tests/moe/layer_over_ranks.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;

constexpr MoeLayout kLayouts[] = {{1, 2, 1}, {1, 4, 1}, {1, 2, 2}, {1, 1, 2}};

// As the paged stash does at most: only rows in use survive, the others come back as NaN.
class LosePadding final : public TapePolicy {
 public:
  explicit LosePadding(std::atomic<int>& num_padded) : num_padded_(num_padded) {}
  void saved(Record& record, Stream& stream) override {
    if (!record.num_rows.defined()) return;
    const int64_t num_rows = read_back<int32_t>(stream, record.num_rows)[0];
    for (const auto& saved : record.tensors) {
      if (!saved->on_device() || saved->dtype() == DType::I32) continue;
      const Tensor tensor = saved->get(stream);
      EXPECT_LE(num_rows, tensor.dim(0));
      if (num_rows < tensor.dim(0)) ++num_padded_;
      const Tensor copy = poisoned(stream, tensor.shape(), tensor.dtype());
      stream.copy(copy.rows(0, num_rows), tensor.rows(0, num_rows));
      saved->move_to(std::make_unique<Elsewhere>(copy));
    }
  }

 private:
  class Elsewhere final : public Residence {
   public:
    explicit Elsewhere(Tensor copy) : copy_(std::move(copy)) {}
    Tensor bring_back(Stream&) override { return copy_; }

   private:
    Tensor copy_;
  };
  std::atomic<int>& num_padded_;  // tensors
};

// A layer over ranks, with a limit or without one; with `num_padded`, what is padding gets lost on
// the tape. The outcome of each rank, in order.
std::vector<Outcome> run_layers(const MoeCase& c, const MoeLayout& layout,
                                const RankCapacity* capacity,
                                std::atomic<int>* num_padded = nullptr) {
  std::vector<Outcome> outcomes(static_cast<size_t>(layout.world()));
  run_ranks(layout.world(), [&](Group& world, Control&) {
    const auto device = make_cpu_device();
    device->set_poison_memory(true);
    const auto stream = device->make_stream("rank"), side = device->make_stream("side");
    MoeRank rank(world, layout);
    rank.experts.side = side.get();
    rank.experts.capacity = capacity;
    const auto layer = make_moe_layer(c, rank.tensor, rank.experts);
    allocate_parameters(*stream, *layer, 1);
    ForwardTwice twice(*layer);
    const auto input = [&](uint64_t seed) {
      return random_tensor(*stream, {kTokens, kHidden}, c.dtype, seed + 10 * rank.index);
    };
    ModuleRun run;
    run.batch = random_batch(*stream, 4, kTokens / 4, 7, 1);
    std::optional<LosePadding> policy;
    if (num_padded != nullptr) policy.emplace(*num_padded);
    outcomes[static_cast<size_t>(rank.index)] =
        run_micro_batch(*stream, c.recompute ? static_cast<Module&>(twice) : *layer, input(2),
                        input(3), run, policy ? &*policy : nullptr);
  });
  return outcomes;
}

// Removes the total from an outcome.
double take_num_over(Outcome& outcome) {
  const auto found = outcome.tensors.find("total over_capacity");
  if (found == outcome.tensors.end()) return -1;
  const double value = found->second[0];
  outcome.tensors.erase(found);
  return value;
}

TEST(RankCapacity, IsRoundedUpToWholeTiles) {
  EXPECT_EQ((RankCapacity{1.0}.num_rows(0)), 0);
  EXPECT_EQ((RankCapacity{1.0}.num_rows(1)), 128);
  EXPECT_EQ((RankCapacity{1.0}.num_rows(256)), 256);
  EXPECT_EQ((RankCapacity{1.5}.num_rows(256)), 384);
  EXPECT_EQ((RankCapacity{1.001}.num_rows(256)), 384);
  EXPECT_EQ((RankCapacity{0.25}.num_rows(1000)), 256);
}

TEST(RankCapacity, LimitsTheRowsOfAllCopies) {
  RankCapacity capacity{1.5};
  ExpertParallel experts{.ep_size = 4, .etp_size = 2, .capacity = &capacity};
  EXPECT_EQ(experts.row_limit(256), 768);
  capacity.enabled = false;
  EXPECT_EQ(experts.row_limit(256), std::nullopt);
  experts.capacity = nullptr;
  EXPECT_EQ(experts.row_limit(256), std::nullopt);
}

// Enough rows for everything: not a bit differs, also where each rank has more memory than all rows
// could fill, or some have no rows at all.
TEST(RankCapacity, ChangesNoBitIfNothingIsLeftOut) {
  const RankCapacity capacity{4.0};
  for (const MoeLayout& layout : kLayouts) {
    for (const char* kind : {"alltoall", "allgather"}) {
      for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
        for (const char* mode : {"none", "all_to:[2,3]", "power_law:2"}) {
          const MoeCase c{.dispatcher = kind, .force_routing = mode, .dtype = dtype};
          SCOPED_TRACE(concat(layout, "; ", c));
          const auto expected = run_layers(c, layout, nullptr);
          auto limited = run_layers(c, layout, &capacity);
          for (size_t rank = 0; rank < limited.size(); ++rank) {
            EXPECT_EQ(take_num_over(limited[rank]), 0);
            expect_same(limited[rank], expected[rank]);
          }
        }
      }
    }
  }
}

// Nothing that is read comes of rows that are not in use, on the tape or elsewhere.
TEST(RankCapacity, PaddingIsNeverRead) {
  const RankCapacity capacity{4.0};
  for (const MoeLayout& layout : kLayouts) {
    for (const char* kind : {"alltoall", "allgather"}) {
      const MoeCase c{.dispatcher = kind, .shared_ffn = 8};
      SCOPED_TRACE(concat(layout, "; ", c));
      const auto expected = run_layers(c, layout, nullptr);
      std::atomic<int> num_padded = 0;
      auto limited = run_layers(c, layout, &capacity, &num_padded);
      for (size_t rank = 0; rank < limited.size(); ++rank) {
        take_num_over(limited[rank]);
        expect_same(limited[rank], expected[rank]);
      }
      EXPECT_EQ(num_padded, 4 * layout.world());  // rows, gate_up, probs, h
    }
  }
}

// 160 rows for the two experts of rank 0, of which it may have 128.
constexpr MoeLayout kFourRanks{1, 4, 1};
MoeCase too_many(const char* kind, bool recompute = false) {
  return {.dispatcher = kind, .force_routing = "all_to:[0,1]", .recompute = recompute};
}

TEST(RankCapacity, RowsBeyondItAreCountedOnce) {
  const RankCapacity capacity{1.0};
  for (const char* kind : {"alltoall", "allgather"}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(concat(kind, recompute));
      const MoeCase c = too_many(kind, recompute);
      const auto expected = run_layers(c, kFourRanks, nullptr);
      auto limited = run_layers(c, kFourRanks, &capacity);
      std::vector<double> num_over;
      for (Outcome& outcome : limited) num_over.push_back(take_num_over(outcome));
      EXPECT_THAT(num_over, ElementsAre(1, 0, 0, 0));
      EXPECT_NE(limited[3].tensors.at("y"), expected[3].tensors.at("y"));
      for (const Outcome& outcome : limited)
        for (const auto& [name, values] : outcome.tensors)
          for (const double value : values) ASSERT_FALSE(std::isnan(value)) << name;
    }
  }
}

TEST(RankCapacity, SwitchedOffForAReplay) {
  RankCapacity capacity{1.0};
  for (const char* kind : {"alltoall", "allgather"}) {
    const MoeCase c = too_many(kind);
    const auto expected = run_layers(c, kFourRanks, nullptr);
    capacity.enabled = true;
    run_layers(c, kFourRanks, &capacity);
    capacity.enabled = false;
    auto again = run_layers(c, kFourRanks, &capacity);
    for (size_t rank = 0; rank < again.size(); ++rank) {
      EXPECT_EQ(take_num_over(again[rank]), -1);
      expect_same(again[rank], expected[rank]);
    }
  }
}

TEST(RankCapacity, OneRankHasExactlyItsRows) {
  const RankCapacity capacity{0.1};
  const MoeCase c;
  const auto expected = run_layers(c, {1, 1, 1}, nullptr);
  auto limited = run_layers(c, {1, 1, 1}, &capacity);
  EXPECT_EQ(take_num_over(limited[0]), -1);
  expect_same(limited[0], expected[0]);
}

// Dispatchers alone, with choices that are known.
constexpr int64_t kNumTokens = 70, kTopK = 3;

struct Arrived {
  double token, prob;
};

// The rows of a rank in order, without a limit.
std::vector<Arrived> rows_of(const MoeRank& rank, const MoeLayout& layout,
                             std::vector<int32_t>& offsets) {
  std::vector<Arrived> rows;
  offsets = {0};
  const int64_t first = rank.experts.first_local(kExperts);
  for (int64_t e = first; e < first + rank.experts.num_local(kExperts); ++e) {
    for (int from = 0; from < layout.world(); ++from) {
      const std::vector<int32_t> chosen = choices_of(from, kNumTokens, kTopK);
      for (int64_t slot = 0; slot < kNumTokens * kTopK; ++slot)
        if (chosen[static_cast<size_t>(slot)] == e)
          rows.push_back({static_cast<double>(1000 * from + slot / kTopK),
                          static_cast<double>(1000 * from + slot)});
    }
    offsets.push_back(static_cast<int32_t>(rows.size()));
  }
  return rows;
}

void expect_limited(const std::string& kind, const MoeLayout& layout, double factor) {
  SCOPED_TRACE(concat(kind, ", ", layout, ", factor ", factor));
  const RankCapacity capacity{factor};
  run_ranks(layout.world(), [&](Group& world, Control&) {
    MoeRank rank(world, layout);
    rank.experts.capacity = &capacity;
    const auto device = make_cpu_device();
    device->set_poison_memory(true);
    const auto stream = device->make_stream("rank");
    std::vector<double> tokens(kNumTokens), probs(kNumTokens * kTopK);
    std::iota(tokens.begin(), tokens.end(), 1000 * rank.index);
    std::iota(probs.begin(), probs.end(), 1000 * rank.index);
    const Routing routing = routing_of(*stream, rank.index, kTopK, probs);
    const Tensor x = from_host(*stream, "x", tokens, {kNumTokens, 1});

    TrainingPass training(*stream);
    Pass& pass = training.pass;
    const auto dispatcher = make_dispatcher(kind, kExperts, rank.experts);
    dispatcher->prepare(pass, routing);
    const Dispatched sent = dispatcher->dispatch(pass, x, routing.probs);

    std::vector<int32_t> offsets;
    const std::vector<Arrived> rows = rows_of(rank, layout, offsets);
    const int64_t limit = capacity.num_rows(kNumTokens * kTopK * layout.etp);
    const int64_t in_use = std::min<int64_t>(limit, std::ssize(rows));
    EXPECT_EQ(sent.rows.x.shape(), (Shape{limit, 1}));
    EXPECT_EQ(sent.probs.shape(), (Shape{limit}));
    for (int32_t& offset : offsets) offset = std::min(offset, static_cast<int32_t>(limit));
    EXPECT_EQ(read_back<int32_t>(*stream, sent.offsets), offsets);
    std::vector<double> want_rows, want_probs;
    for (int64_t row = 0; row < in_use; ++row) {
      want_rows.push_back(rows[static_cast<size_t>(row)].token);
      want_probs.push_back(rows[static_cast<size_t>(row)].prob);
    }
    const auto used = [&](const Tensor& tensor) {
      return read_back_as_double(*stream, tensor.rows(0, in_use));
    };
    EXPECT_EQ(used(sent.rows.x), want_rows);
    EXPECT_EQ(used(sent.probs), want_probs);
    EXPECT_EQ(used(dispatcher->combine_backward(pass, x)), want_rows);
    EXPECT_EQ(read_back<int32_t>(*stream, training.totals.all().at("over_capacity"))[0],
              std::ssize(rows) > limit);

    // What comes back of a choice: its row if that is in use, from each rank that has it.
    std::vector<double> kept(kNumTokens * kTopK);
    for (int ep_rank = 0; ep_rank < layout.ep; ++ep_rank) {
      ExpertParallel experts = rank.experts;
      experts.ep_rank = ep_rank;
      int64_t row = 0;
      const int64_t first = experts.first_local(kExperts);
      for (int64_t e = first; e < first + experts.num_local(kExperts); ++e) {
        for (int from = 0; from < layout.world(); ++from) {
          const std::vector<int32_t> chosen = choices_of(from, kNumTokens, kTopK);
          for (size_t slot = 0; slot < chosen.size(); ++slot)
            if (chosen[slot] == e && row++ < limit && from == rank.index) kept[slot] = layout.etp;
        }
      }
    }
    std::vector<double> want_y(kNumTokens, 0.5), want_dprobs;
    for (size_t slot = 0; slot < kept.size(); ++slot) {
      want_y[slot / kTopK] += kept[slot] * tokens[slot / kTopK];
      want_dprobs.push_back(kept[slot] * probs[slot]);
    }
    const auto with_padding = [&](const Tensor& tensor) {
      stream->copy(tensor.rows(in_use, limit),
                   poisoned(*stream, tensor.rows(in_use, limit).shape(), tensor.dtype()));
      return tensor;
    };
    const Tensor half =
        from_host(*stream, "half", std::vector<double>(kNumTokens, 0.5), {kNumTokens, 1});
    const Tensor all_rows = with_padding(sent.rows.x), all_probs = with_padding(sent.probs);
    EXPECT_EQ(read_back_as_double(*stream, dispatcher->combine(pass, all_rows, half)), want_y);
    const auto returning = dispatcher->start_dispatch_backward(pass, all_rows, all_probs);
    EXPECT_EQ(read_back_as_double(*stream, dispatcher->probs_gradient(pass, returning)),
              want_dprobs);
    EXPECT_EQ(read_back_as_double(*stream, dispatcher->x_gradient(pass, returning, half)), want_y);
  });
}

TEST(RankCapacity, DispatchersLeaveOutTheLastRows) {
  for (const MoeLayout& layout : kLayouts)
    for (const char* kind : {"alltoall", "allgather"})
      for (const double factor : {0.1, 0.5, 1.0, 1.3, 9.0}) expect_limited(kind, layout, factor);
}

}  // namespace
}  // namespace ferry::testing
