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

TEST_P(PermuteOp, GatherReadsZerosBeyondTheEnd) {
  const Tensor in = tensor_of(stream(), {10, 11, 12}, {3}, accumulate());
  const Tensor index = ints({9, 2, 5, 0, 3, 1}, {6});
  const Tensor out = output({6}, accumulate());
  gather_scalars(stream(), out, in, index);
  EXPECT_THAT(read_back_as_double(stream(), out), ElementsAre(0, 12, 0, 10, 0, 11));
  const Tensor first = output({4}, accumulate());
  gather_scalars(stream(), first, in, index);
  EXPECT_THAT(read_back_as_double(stream(), first), ElementsAre(0, 12, 0, 10));
  gather_scalars(stream(), out, output({0}, accumulate()), index);
  EXPECT_THAT(read_back_as_double(stream(), out), ElementsAre(0, 0, 0, 0, 0, 0));
  gather_scalars(stream(), output({0}, accumulate()), in, index);
  stream().synchronize();
}

// Experts 0 and 1 are on the first rank (or two ranks that share them), 2 and 3 on the second, ...
TEST_P(PermuteOp, DestinationsNameARankOncePerToken) {
  const Tensor experts = ints({0, 4, 1, 5, 2, 3}, {2, 3});
  const Tensor destinations = output({2, 3}, DType::I32);
  find_destinations(stream(), destinations, experts, 2, 1, 3);
  EXPECT_THAT(host(destinations), ElementsAre(0, 2, 3, 2, 1, 4));
  const Tensor of_pairs = output({2, 6}, DType::I32);
  find_destinations(stream(), of_pairs, experts, 2, 2, 6);
  EXPECT_THAT(host(of_pairs), ElementsAre(0, 1, 4, 5, 6, 7, 4, 5, 2, 3, 8, 9));
  find_destinations(stream(), destinations, experts, 6, 1, 1);
  EXPECT_THAT(host(destinations), ElementsAre(0, 1, 1, 0, 1, 1));
  const Tensor none = output({0, 6}, DType::I32);
  find_destinations(stream(), none, ints({}, {0, 3}), 2, 2, 6);
  stream().synchronize();
}

TEST_P(PermuteOp, PlanOfDestinationsHasEachTokenOnceForEachOfItsRanks) {
  constexpr int64_t kExperts = 24;
  for (const int64_t tokens : {1, 65, 700}) {
    for (const int64_t top_k : {1, 2, 8}) {
      for (const int64_t parts : {1, 2, 8}) {
        for (const int64_t copies : {1, 2}) {
          SCOPED_TRACE(concat(tokens, " tokens, top ", top_k, ", ", parts, " x ", copies));
          const int64_t ranks = parts * copies, num_local = kExperts / parts;
          const Tensor chosen = random_choice(tokens, top_k, kExperts, 7, tokens % 2 == 0);
          const Tensor destinations = output({tokens, top_k * copies}, DType::I32);
          find_destinations(stream(), destinations, chosen, num_local, copies, ranks);
          const RoutingPlan plan = plan_of(destinations, 2 * ranks);

          const std::vector<int32_t> experts = host(chosen), slot_of_row = host(plan.slot_of_row);
          std::vector<int32_t> want_counts(2 * ranks);
          size_t row = 0;
          for (int64_t rank = 0; rank < ranks; ++rank) {
            for (int64_t t = 0; t < tokens; ++t) {
              const auto choices = static_cast<int32_t>(
                  std::count_if(experts.begin() + t * top_k, experts.begin() + (t + 1) * top_k,
                                [&](int32_t e) { return e / num_local == rank / copies; }));
              if (choices == 0) continue;
              ASSERT_EQ(slot_of_row[row++] / (top_k * copies), t) << "rank " << rank;
              want_counts[rank] += 1;
              want_counts[ranks + rank] += choices - 1;
            }
          }
          EXPECT_EQ(host(plan.counts), want_counts);
        }
      }
    }
  }
}

// What goes with the rows: numbers of the k choices, in one word, in vectors, and in neither.
TEST_P(PermuteOp, RowsOfAnyDtypeAreCopied) {
  const RoutingPlan plan = plan_of(random_choice(70, 3, 8, 5, false), 8);
  const std::vector<int32_t> slot_of_row = host(plan.slot_of_row);
  const int64_t num_rows = host(plan.offsets)[6];
  for (const int64_t width : {1, 2, 3, 8}) {
    SCOPED_TRACE(concat(width, " columns"));
    std::vector<int32_t> values(70 * width);
    std::iota(values.begin(), values.end(), 1 << 24);
    const Tensor guarded = output({70 * 3, width}, DType::I32);
    permute_rows(stream(), guarded.rows(0, num_rows), ints(values, {70, width}), plan);
    const std::vector<int32_t> rows = host(guarded.rows(0, num_rows));
    for (int64_t i = 0; i < num_rows * width; ++i)
      ASSERT_EQ(rows[i], values[slot_of_row[i / width] / 3 * width + i % width]) << i;
    const Tensor rest = guarded.rows(num_rows, 70 * 3);
    expect_same_bits(stream(), rest, output(rest.shape(), DType::I32));
  }
  const Tensor bytes = from_host(stream(), "bytes", std::vector<uint8_t>{1, 2, 3}, {3, 1});
  const Tensor gathered = output({4, 1}, DType::U8);
  gather_rows(stream(), gathered, bytes, ints({2, 0, 2, 1}, {4}), 1);
  EXPECT_THAT(read_back<uint8_t>(stream(), gathered), ElementsAre(3, 1, 3, 2));
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
  const Tensor choices = output({3, 2}, DType::I32);
  EXPECT_THAT([&] { find_destinations(stream(), choices, choices, 4, 2, 2); },
              ThrowsMessage<Error>(HasSubstr("destinations has shape [3, 2], not [3, 4]")));
  EXPECT_THAT([&] { find_destinations(stream(), choices, choices, 0, 1, 2); },
              ThrowsMessage<Error>(HasSubstr("0 experts per rank, 1 copies, 2 ranks")));
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

}  // namespace
}  // namespace ferry::testing
