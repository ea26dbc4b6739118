#include "core/ops/permute.h"

#include <gmock/gmock.h>

#include <numeric>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

RoutingPlan empty_plan(Stream& stream, int64_t experts, int64_t rows) {
  return {poisoned(stream, {experts}, DType::I32), poisoned(stream, {experts + 1}, DType::I32),
          poisoned(stream, {rows}, DType::I32), poisoned(stream, {rows}, DType::I32)};
}

class PermuteOp : public DeviceTest {
 protected:
  RoutingPlan plan_of(const Tensor& chosen, int64_t experts) {
    const RoutingPlan plan = empty_plan(stream(), experts, chosen.numel());
    make_routing_plan(stream(), plan, chosen);
    return plan;
  }
  std::vector<int32_t> host(const Tensor& tensor) { return read_back<int32_t>(stream(), tensor); }

  // k distinct experts per token; with `skew`, small numbers are chosen more often.
  Tensor random_choice(int64_t tokens, int64_t top_k, int64_t experts, uint64_t seed, bool skew) {
    std::mt19937_64 generator(seed);
    std::vector<int32_t> chosen;
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> order(experts);
      std::iota(order.begin(), order.end(), 0);
      if (!skew || t % 4 == 0) std::shuffle(order.begin(), order.end(), generator);
      chosen.insert(chosen.end(), order.begin(), order.begin() + top_k);
    }
    return ints(chosen, {tokens, top_k});
  }
};

TEST_P(PermuteOp, PlanOrdersByExpertThenToken) {
  const RoutingPlan plan = plan_of(ints({2, 0, 0, 3, 3, 2}, {3, 2}), 5);
  EXPECT_THAT(host(plan.counts), ElementsAre(2, 0, 2, 2, 0));
  EXPECT_THAT(host(plan.offsets), ElementsAre(0, 2, 2, 4, 6, 6));
  EXPECT_THAT(host(plan.slot_of_row), ElementsAre(1, 2, 0, 5, 3, 4));
  EXPECT_THAT(host(plan.row_of_slot), ElementsAre(2, 0, 1, 4, 5, 3));
}

TEST_P(PermuteOp, PlanIsAStableSortForEverySize) {
  for (const int64_t tokens : {1, 63, 64, 65, 129, 1500}) {
    for (const int64_t experts : {1, 8, 65, 128}) {
      for (const int64_t top_k : {1, 2, 8}) {
        if (top_k > experts) continue;
        SCOPED_TRACE(concat(tokens, " tokens, ", experts, " experts, top ", top_k));
        const Tensor chosen = random_choice(tokens, top_k, experts, 7, tokens % 2 == 0);
        const RoutingPlan plan = plan_of(chosen, experts);
        const std::vector<int32_t> expert_of_slot = host(chosen);
        std::vector<int32_t> order(expert_of_slot.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return expert_of_slot[a] < expert_of_slot[b];
        });
        EXPECT_EQ(host(plan.slot_of_row), order);
        const std::vector<int32_t> row_of_slot = host(plan.row_of_slot);
        for (size_t r = 0; r < order.size(); ++r) {
          ASSERT_EQ(row_of_slot[order[r]], static_cast<int32_t>(r));
        }
        std::vector<int32_t> counts(experts), offsets(experts + 1);
        for (const int32_t e : expert_of_slot) ++counts[e];
        std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
        EXPECT_EQ(host(plan.counts), counts);
        EXPECT_EQ(host(plan.offsets), offsets);
      }
    }
  }
}

TEST_P(PermuteOp, AllTokensToOneExpert) {
  const RoutingPlan plan = plan_of(ints(std::vector<int32_t>(130, 3), {130, 1}), 4);
  std::vector<int32_t> order(130);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_THAT(host(plan.counts), ElementsAre(0, 0, 0, 130));
  EXPECT_EQ(host(plan.slot_of_row), order);
}

TEST_P(PermuteOp, ZeroTokens) {
  const RoutingPlan plan = plan_of(ints({}, {0, 2}), 3);
  EXPECT_THAT(host(plan.counts), ElementsAre(0, 0, 0));
  EXPECT_THAT(host(plan.offsets), ElementsAre(0, 0, 0, 0));
  const Tensor none = output({0, 8});
  permute_rows(stream(), none, none, plan);
  combine_rows(stream(), none, none, Tensor(), plan);
  stream().synchronize();
}

TEST_P(PermuteOp, RowsAreCopiesOfTheirTokens) {
  for (const int64_t width : {1, 63, 64, 65, 129}) {
    const Tensor x = random({9, width}, 1), rows = output({18, width});
    const RoutingPlan plan = plan_of(random_choice(9, 2, 4, 5, false), 4);
    permute_rows(stream(), rows, x, plan);
    const auto in = read_back_as_double(stream(), x), out = read_back_as_double(stream(), rows);
    const std::vector<int32_t> slot_of_row = host(plan.slot_of_row);
    for (int64_t r = 0; r < 18; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        ASSERT_EQ(out[r * width + i], in[slot_of_row[r] / 2 * width + i]) << "row " << r;
      }
    }
  }
}

TEST_P(PermuteOp, CombineSumsTheSlotsOfATokenAndRoundsOnce) {
  for (const int64_t width : {1, 63, 64, 65, 129}) {
    for (const bool with_residual : {false, true}) {
      SCOPED_TRACE(concat(width, with_residual ? " with residual" : ""));
      const Tensor rows = random({27, width}, 1), y = output({9, width});
      const Tensor residual = with_residual ? random({9, width}, 2) : Tensor();
      const RoutingPlan plan = plan_of(random_choice(9, 3, 4, 5, false), 4);
      combine_rows(stream(), y, rows, residual, plan);

      const auto in = read_back_as_double(stream(), rows);
      std::vector<double> want(9 * width);
      if (with_residual) want = read_back_as_double(stream(), residual);
      const std::vector<int32_t> row_of_slot = host(plan.row_of_slot);
      for (int64_t s = 0; s < 27; ++s) {
        for (int64_t i = 0; i < width; ++i) {
          want[s / 3 * width + i] += in[row_of_slot[s] * width + i];
        }
      }
      testing::expect_close(read_back_as_double(stream(), y), want, epsilon_of(dtype()) / 2,
                            8 * epsilon_of(accumulate()));
    }
  }
}

// Widths: one vector, more than a warp has at once, and neither. More choices than lanes.
TEST_P(PermuteOp, RowsAreCopiesForAnyNumberOfChoices) {
  for (const int64_t width : {8, 257, 2056}) {
    for (const int64_t top_k : {1, 8, 33}) {
      SCOPED_TRACE(concat(width, " columns, top ", top_k));
      const Tensor x = random({9, width}, 1), rows = output({9 * top_k, width});
      const RoutingPlan plan = plan_of(random_choice(9, top_k, 40, 5, false), 40);
      permute_rows(stream(), rows, x, plan);
      const std::vector<int32_t> slot_of_row = host(plan.slot_of_row);
      for (int64_t r = 0; r < 9 * top_k; ++r) {
        const int64_t token = slot_of_row[r] / top_k;
        expect_same_bits(stream(), rows.rows(r, r + 1), x.rows(token, token + 1));
      }
    }
  }
}

TEST_P(PermuteOp, CombineTakesAnyNumberOfChoicesAndOfMissingRows) {
  for (const int64_t width : {8, 264, 2056}) {
    for (const int64_t top_k : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
      SCOPED_TRACE(concat(width, " columns, top ", top_k));
      const RoutingPlan plan = plan_of(random_choice(11, top_k, 12, 5, false), 12);
      const int64_t num_rows = host(plan.offsets)[9];  // the last three experts are elsewhere
      const Tensor rows = random({num_rows, width}, 1), residual = random({11, width}, 2);
      const Tensor y = output({11, width});
      combine_rows(stream(), y, rows, residual, plan);

      const auto in = read_back_as_double(stream(), rows);
      std::vector<double> want = read_back_as_double(stream(), residual);
      const std::vector<int32_t> row_of_slot = host(plan.row_of_slot);
      for (int64_t s = 0; s < 11 * top_k; ++s) {
        if (row_of_slot[s] >= num_rows) continue;
        for (int64_t i = 0; i < width; ++i) {
          want[s / top_k * width + i] += in[row_of_slot[s] * width + i];
        }
      }
      testing::expect_close(read_back_as_double(stream(), y), want, epsilon_of(dtype()) / 2,
                            16 * epsilon_of(accumulate()));
    }
  }
}

TEST_P(PermuteOp, AnyRowsAreGatheredByTheirIndex) {
  for (const int64_t width : {1, 8, 24, 33, 520}) {
    const Tensor x = random({3, width}, 1), rows = output({7, width});
    const std::vector<int32_t> slots{5, 0, 5, 1, 2, 4, 0};  // two choices of three tokens
    gather_rows(stream(), rows, x, ints(slots, {7}), 2);
    const auto from = read_back_as_double(stream(), x), to = read_back_as_double(stream(), rows);
    for (size_t r = 0; r < slots.size(); ++r)
      for (int64_t c = 0; c < width; ++c)
        EXPECT_EQ(to[r * width + c], from[slots[r] / 2 * width + c]) << r << ' ' << c;
  }
  gather_rows(stream(), output({0, 8}), random({3, 8}, 1), ints({}, {0}), 2);
  EXPECT_THAT(
      [&] {
        gather_rows(stream(), output({2, 8}), random({3, 8}, 1), ints({0}, {1}), 2);
      },
      ThrowsMessage<Error>(HasSubstr("[2, 8]")));
}

TEST_P(PermuteOp, CombineIsTheBackwardOfPermute) {
  const Tensor x = random({33, 17}, 1), dy = random({66, 17}, 2);
  const Tensor y = output({66, 17}), dx = output({33, 17});
  const RoutingPlan plan = plan_of(random_choice(33, 2, 5, 3, true), 5);
  permute_rows(stream(), y, x, plan);
  combine_rows(stream(), dx, dy, Tensor(), plan);
  const auto dot = [&](const Tensor& a, const Tensor& b) {
    const auto left = read_back_as_double(stream(), a), right = read_back_as_double(stream(), b);
    return std::inner_product(left.begin(), left.end(), right.begin(), 0.0);
  };
  EXPECT_NEAR(dot(y, dy), dot(x, dx), 1200 * epsilon_of(dtype()) / 2);
}

TEST_P(PermuteOp, GatherFollowsTheIndex) {
  const Tensor in = tensor_of(stream(), {10, 11, 12}, {3}, accumulate());
  const Tensor out = output({5}, accumulate());
  gather_scalars(stream(), out, in, ints({2, 0, 1, 1, 2}, {5}));
  EXPECT_THAT(read_back_as_double(stream(), out), ElementsAre(12, 10, 11, 11, 12));
}

TEST_P(PermuteOp, GatherDividesTheIndexAndReadsZerosBeyondTheEnd) {
  const Tensor in = tensor_of(stream(), {10, 11, 12}, {3}, accumulate());
  const Tensor index = ints({9, 2, 5, 0, 7, 1}, {6});
  const Tensor out = output({6}, accumulate());
  gather_scalars(stream(), out, in, index, 2);
  EXPECT_THAT(read_back_as_double(stream(), out), ElementsAre(0, 11, 12, 10, 0, 10));
  const Tensor first = output({4}, accumulate());
  gather_scalars(stream(), first, in, index);
  EXPECT_THAT(read_back_as_double(stream(), first), ElementsAre(0, 12, 0, 10));
  gather_scalars(stream(), out, output({0}, accumulate()), index);
  EXPECT_THAT(read_back_as_double(stream(), out), ElementsAre(0, 0, 0, 0, 0, 0));
  gather_scalars(stream(), output({0}, accumulate()), in, index);
  stream().synchronize();
}

TEST_P(PermuteOp, CopiesAreSummed) {
  const Tensor in = tensor_of(stream(), {1, 2, 4, 8, 16, 32}, {6}, accumulate());
  const Tensor pairs = output({3}, accumulate()), one = output({1}, accumulate());
  sum_copies(stream(), pairs, in, 2);
  EXPECT_THAT(read_back_as_double(stream(), pairs), ElementsAre(3, 12, 48));
  sum_copies(stream(), one, in, 6);
  EXPECT_THAT(read_back_as_double(stream(), one), ElementsAre(63));
  const Tensor none = output({0}, accumulate());
  sum_copies(stream(), none, output({0}, accumulate()), 3);
  stream().synchronize();
}

// 2 ranks that share experts, 3 experts each: those of rank 2g and 2g+1 are experts 3g to 3g+2.
TEST_P(PermuteOp, ChoicesAreExpandedToTheRanksOfAnExpert) {
  const Tensor choices = output({2, 4}, DType::I32);
  expand_choices(stream(), choices, ints({0, 4, 5, 2}, {2, 2}), 3, 2);
  EXPECT_THAT(host(choices), ElementsAre(0, 3, 7, 10, 8, 11, 2, 5));
  const Tensor same = output({2, 2}, DType::I32);
  expand_choices(stream(), same, ints({0, 4, 5, 2}, {2, 2}), 3, 1);
  EXPECT_THAT(host(same), ElementsAre(0, 4, 5, 2));
}

TEST_P(PermuteOp, ExpertsOfOtherRanksAreOneMore) {
  const Tensor experts = ints({0, 3, 4, 5, 6, 7}, {3, 2}), local = output({3, 2}, DType::I32);
  localise_experts(stream(), local, experts, 4, 2);
  EXPECT_THAT(host(local), ElementsAre(2, 2, 0, 1, 2, 2));
  localise_experts(stream(), experts, experts, 0, 4);  // in place
  EXPECT_THAT(host(experts), ElementsAre(0, 3, 4, 4, 4, 4));
}

TEST_P(PermuteOp, RegroupOrdersByExpertThenRank) {
  // Rank 0 sends rows 0 to 2, two for expert 0; rank 1 sends rows 3 to 6.
  const RoutingPlan plan = empty_plan(stream(), 3, 9);
  make_regroup_plan(stream(), plan, ints({2, 0, 1, 1, 0, 3}, {2, 3}));
  EXPECT_THAT(host(plan.counts), ElementsAre(3, 0, 4));
  EXPECT_THAT(host(plan.offsets), ElementsAre(0, 3, 3, 7));
  EXPECT_THAT(host(plan.slot_of_row), ElementsAre(0, 1, 3, 2, 4, 5, 6, 7, 8));
  EXPECT_THAT(host(plan.row_of_slot), ElementsAre(0, 1, 3, 2, 4, 5, 6, 7, 8));
}

TEST_P(PermuteOp, RegroupIsAStableSortForEverySize) {
  std::mt19937_64 generator(3);
  for (const int64_t ranks : {1, 2, 8, 64}) {
    for (const int64_t experts : {1, 2, 33, 128}) {
      for (const int32_t most : {0, 1, 7}) {
        SCOPED_TRACE(concat(ranks, " ranks, ", experts, " experts, up to ", most, " rows"));
        std::vector<int32_t> counts, expert_of_slot;
        for (int64_t chunk = 0; chunk < ranks * experts; ++chunk) {
          counts.push_back(static_cast<int32_t>(generator() % static_cast<uint64_t>(most + 1)));
          expert_of_slot.insert(expert_of_slot.end(), counts.back(),
                                static_cast<int32_t>(chunk % experts));
        }
        const auto num_rows = static_cast<int64_t>(expert_of_slot.size());
        const RoutingPlan plan = empty_plan(stream(), experts, num_rows);
        make_regroup_plan(stream(), plan, ints(counts, {ranks, experts}));
        const RoutingPlan want = plan_of(ints(expert_of_slot, {num_rows, 1}), experts);
        EXPECT_EQ(host(plan.counts), host(want.counts));
        EXPECT_EQ(host(plan.offsets), host(want.offsets));
        EXPECT_EQ(host(plan.slot_of_row), host(want.slot_of_row));
        EXPECT_EQ(host(plan.row_of_slot), host(want.row_of_slot));
      }
    }
  }
}

// The rows of the last expert are left out: nothing is written for them, and they count as zeros.
TEST_P(PermuteOp, RowsOfOtherRanksAreLeftOut) {
  for (const int64_t width : {1, 63, 64}) {
    for (const bool any_rows : {true, false}) {
      SCOPED_TRACE(concat(width, any_rows ? "" : ", no rows"));
      const Tensor chosen = random_choice(9, 2, 4, 5, false);
      if (!any_rows) localise_experts(stream(), chosen, chosen, 4, 3);  // all to expert 3
      const RoutingPlan plan = plan_of(chosen, 4);
      const int64_t num_rows = host(plan.offsets)[3];
      EXPECT_EQ(num_rows > 0, any_rows);
      const Tensor x = random({9, width}, 1), all = output({18, width});
      permute_rows(stream(), all, x, plan);
      const Tensor guarded = output({18, width});
      const Tensor rows = guarded.rows(0, num_rows);
      permute_rows(stream(), rows, x, plan);
      expect_same_bits(stream(), rows, all.rows(0, num_rows));
      const Tensor rest = guarded.rows(num_rows, 18);
      expect_same_bits(stream(), rest, output(rest.shape()));

      const Tensor y = output({9, width}), want = output({9, width}),
                   residual = random(y.shape(), 2);
      combine_rows(stream(), y, rows, residual, plan);
      stream().zero(all.rows(num_rows, 18));
      combine_rows(stream(), want, all, residual, plan);
      expect_same_bits(stream(), y, want);
    }
  }
}

TEST_P(PermuteOp, RefusesWrongArguments) {
  const RoutingPlan plan = empty_plan(stream(), 4, 6);
  EXPECT_THAT(
      [&] {
        make_routing_plan(stream(), plan, output({3, 1}, DType::I32));
      },
      ThrowsMessage<Error>(HasSubstr("plan.row_of_slot has shape [6], not [3]")));
  EXPECT_THAT(
      [&] {
        make_routing_plan(stream(), plan, output({3, 2}, DType::F32));
      },
      ThrowsMessage<Error>(HasSubstr("experts are f32")));
  EXPECT_THAT(
      [&] {
        permute_rows(stream(), output({6, 8}), output({4, 8}), plan);
      },
      ThrowsMessage<Error>(HasSubstr("6 slots of 4 tokens")));
  EXPECT_THAT(
      [&] {
        permute_rows(stream(), output({7, 8}), output({3, 8}), plan);
      },
      ThrowsMessage<Error>(HasSubstr("7 rows of a plan of 6")));
  EXPECT_THAT(
      [&] {
        permute_rows(stream(), output({6, 7}), output({3, 8}), plan);
      },
      ThrowsMessage<Error>(HasSubstr("rows has shape [6, 7], not [6, 8]")));
  EXPECT_THAT(
      [&] {
        combine_rows(stream(), output({3, 8}), output({6, 8}), output({3, 7}), plan);
      },
      ThrowsMessage<Error>(HasSubstr("residual has shape [3, 7], not [3, 8]")));
  const Tensor numbers = output({6}, accumulate());
  EXPECT_THAT([&] { gather_scalars(stream(), numbers, numbers, plan.row_of_slot); },
              ThrowsMessage<Error>(HasSubstr("out is the memory of in")));
  EXPECT_THAT(
      [&] { gather_scalars(stream(), output({7}, accumulate()), numbers, plan.row_of_slot); },
      ThrowsMessage<Error>(HasSubstr("7 outputs for 6 indices")));
  EXPECT_THAT(
      [&] { gather_scalars(stream(), output({6}, accumulate()), numbers, plan.row_of_slot, 0); },
      ThrowsMessage<Error>(HasSubstr("divisor is 0")));
  EXPECT_THAT([&] { sum_copies(stream(), output({4}, accumulate()), numbers, 2); },
              ThrowsMessage<Error>(HasSubstr("2 copies of 4 sums in 6 numbers")));
  EXPECT_THAT(
      [&] {
        make_regroup_plan(stream(), plan, output({2, 3}, DType::I32));
      },
      ThrowsMessage<Error>(HasSubstr("plan.counts has shape [4], not [3]")));
  EXPECT_THAT(
      [&] {
        make_regroup_plan(stream(), plan, output({2, 4}, DType::F32));
      },
      ThrowsMessage<Error>(HasSubstr("counts are f32")));
  const Tensor choices = output({3, 2}, DType::I32);
  EXPECT_THAT([&] { expand_choices(stream(), choices, choices, 4, 2); },
              ThrowsMessage<Error>(HasSubstr("virtual_experts has shape [3, 2], not [3, 4]")));
  EXPECT_THAT([&] { expand_choices(stream(), choices, choices, 0, 1); },
              ThrowsMessage<Error>(HasSubstr("0 experts per rank, 1 copies")));
  EXPECT_THAT(
      [&] {
        localise_experts(stream(), output({2, 2}, DType::I32), choices, 0, 2);
      },
      ThrowsMessage<Error>(HasSubstr("local_experts has shape [2, 2], not [3, 2]")));
}

INSTANTIATE_TEST_SUITE_P(Devices, PermuteOp, device_cases(), case_name);

class PermuteOnCpu : public CpuTest {};

TEST_F(PermuteOnCpu, NamesAnExpertOutOfRange) {
  const RoutingPlan plan = empty_plan(stream(), 4, 2);
  make_routing_plan(stream(), plan,
                    from_host(stream(), "experts", std::vector<int32_t>{1, 4}, {2, 1}));
  EXPECT_THAT([&] { stream().synchronize(); },
              ThrowsMessage<Error>(HasSubstr("slot 1 chose expert 4 of 4")));
}

TEST_F(PermuteOnCpu, NamesMoreReceivedRowsThanThePlanHas) {
  const RoutingPlan plan = empty_plan(stream(), 2, 4);
  make_regroup_plan(stream(), plan,
                    from_host(stream(), "counts", std::vector<int32_t>{2, 3}, {1, 2}));
  EXPECT_THAT([&] { stream().synchronize(); },
              ThrowsMessage<Error>(HasSubstr("5 rows for a plan of 4")));
}

}  // namespace
}  // namespace ferry::testing
