#include "offload/paged_stash.h"

#include <gmock/gmock.h>

#include "tests/offload/padded_layers.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Actions = std::vector<PassAction>;

PassAction forward(int micro, int chunk = 0) { return {true, {chunk, micro}}; }
PassAction backward(int micro, int chunk = 0) { return {false, {chunk, micro}}; }

// Orders of a single rank, of the first and the last stage of a pipeline, and of two chunks.
std::vector<Actions> orders() {
  return {
      {forward(0), backward(0)},
      {forward(0), backward(0), forward(1), backward(1), forward(2), backward(2)},
      {forward(0), forward(1), backward(0), forward(2), backward(1), backward(2)},
      {forward(0), forward(1), forward(2), backward(0), backward(1), backward(2)},
      {forward(0, 0), forward(1, 0), forward(0, 1), backward(0, 1), forward(1, 1), backward(1, 1),
       backward(0, 0), backward(1, 0)},
  };
}

// From none to all, different everywhere.
int64_t uneven_rows(PassId pass, int layer) {
  return (7 * pass.micro + 11 * layer + 5 * pass.chunk) % (PaddedLayers::kPadded + 1);
}
int64_t half_of_the_rows(PassId, int) { return PaddedLayers::kPadded / 2; }

class PagedStashTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped()) device().set_poison_memory(true);
  }
  PaddedLayers layers(RowsInUse rows_in_use, int num_layers = 3, bool fused = false) {
    return PaddedLayers(stream(), dtype(), num_layers, std::move(rows_in_use), fused);
  }
  int32_t number(const Tensor& tensor) { return read_back<int32_t>(stream(), tensor)[0]; }
  std::vector<int64_t> state(const PagePool& pool) {
    return read_back<int64_t>(stream(), pool.state);
  }
  void expect_all_free(const PagedStash& stash) {
    for (const auto& [key, pool] : stash.pools()) {
      const std::vector<int64_t> at = state(pool);
      EXPECT_EQ(at[kTail] - at[kHead], pool.pages.dim(0));
      EXPECT_EQ(at[kHostTail] - at[kHostHead], pool.host_pages.dim(0));
    }
  }
  int64_t pages_taken(const PagedStash& stash) {
    int64_t sum = 0;
    for (const auto& [key, pool] : stash.pools()) sum += state(pool)[kHead];
    return sum;
  }
};

// By the measured peak: what was needed is exactly there.
constexpr PagedStashConfig kMeasured = {
    .page_tokens = 4, .device_factor = -1.0, .capacity_factor = 2.0};

TEST_P(PagedStashTest, ChangesNoBit) {
  for (const Actions& actions : orders()) {
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(concat(actions.size(), " actions", fused ? ", fused" : ""));
      PaddedLayers model = layers(uneven_rows, 3, fused);
      const auto expected = model.run(actions, nullptr);
      PagedStash stash(device(), kMeasured);
      for (int step = 0; step < 4; ++step) {
        EXPECT_TRUE(model.run(actions, &stash) == expected) << "step " << step;
        EXPECT_EQ(number(stash.overflow()), 0);
        EXPECT_EQ(number(stash.spilled()), 0);
        EXPECT_EQ(stash.pools().empty(), step == 0);
        EXPECT_EQ(pages_taken(stash) > 0, step > 0);
        expect_all_free(stash);
      }
    }
  }
}

TEST_P(PagedStashTest, PoolsAreThoseOfTheMeasuredStep) {
  PaddedLayers model = layers(half_of_the_rows, 2);
  PagedStash stash(device(), {.page_tokens = 5, .device_factor = 1.0, .capacity_factor = 3.0});
  const Actions actions = orders()[2];  // at most two passes at once
  model.run(actions, &stash);
  model.run(actions, &stash);
  // x is [24, 16] and h [24, 8]: 8 rows on average, 2 pages of 5; 2 layers of 2 passes.
  ASSERT_EQ(stash.pools().size(), 2u);
  for (const auto& [key, pool] : stash.pools()) {
    EXPECT_EQ(key.dtype, dtype());
    EXPECT_EQ(pool.pages.shape(), (Shape{8, 5, key.width}));
    EXPECT_EQ(pool.host_pages.dim(0), 0);
  }
  // 12 rows are in use, 3 pages: more than that.
  EXPECT_EQ(number(stash.overflow()), 1);
}

// On one rank the pass that went forward comes back at once.
TEST_P(PagedStashTest, TheLastLayerStaysIfItIsNeededAtOnce) {
  PaddedLayers model = layers(half_of_the_rows, 3);
  PagedStash stash(device(), kMeasured);
  for (int step = 0; step < 2; ++step) model.run(orders()[1], &stash);
  // Of 3 micro-batches, 2 layers with 2 tensors of 12 rows, 3 pages.
  EXPECT_EQ(pages_taken(stash), 3 * 2 * 2 * 3);
  for (int step = 0; step < 2; ++step) model.run(orders()[3], &stash);
  // All three layers; the last micro-batch comes back last, too.
  EXPECT_EQ(pages_taken(stash), 3 * 3 * 2 * 3);
  EXPECT_EQ(number(stash.overflow()), 0);
}

TEST_P(PagedStashTest, OverflowIsFlaggedAndStaysWithinThePool) {
  for (const Actions& actions : orders()) {
    PaddedLayers model = layers(half_of_the_rows);
    const auto expected = model.run(actions, nullptr);
    // Half of the measured rows.
    PagedStash stash(device(), {.page_tokens = 4, .device_factor = -0.5, .capacity_factor = 2.0});
    model.run(actions, &stash);
    EXPECT_EQ(number(stash.overflow()), 0);
    for (int step = 0; step < 2; ++step) {
      const auto outcome = model.run(actions, &stash);
      EXPECT_EQ(number(stash.overflow()), 1);
      EXPECT_FALSE(outcome == expected);  // yet zeros, not what the memory held
      expect_all_free(stash);
    }
    // The step again, without the stash; then with it, as before.
    stash.set_enabled(false);
    EXPECT_TRUE(model.run(actions, &stash) == expected);
    EXPECT_EQ(number(stash.overflow()), 0);
    EXPECT_TRUE(stash.traffic().empty());
    stash.set_enabled(true);
    model.run(actions, &stash);
    EXPECT_EQ(number(stash.overflow()), 1);
  }
}

TEST_P(PagedStashTest, SpillsWholeTensorsToTheHost) {
  const Actions actions = orders()[3];
  PaddedLayers model = layers(half_of_the_rows);
  const auto expected = model.run(actions, nullptr);
  PagedStash stash(
      device(),
      {.page_tokens = 4, .device_factor = -0.5, .host_factor = -0.6, .capacity_factor = 2.0});
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(model.run(actions, &stash) == expected);
    EXPECT_EQ(number(stash.overflow()), 0);
    EXPECT_EQ(number(stash.spilled()), step > 0);
    const ModuleTraffic traffic = stash.traffic().at("paged_stash");
    // 9 tensors of each of two widths, of 12 rows; half of them, rounded up.
    const int64_t row_bytes = (8 + 16) * static_cast<int64_t>(size_of(dtype()));
    EXPECT_EQ(traffic.d2h_bytes, step > 0 ? 5 * 12 * row_bytes : 0);
    EXPECT_EQ(traffic.h2d_bytes, traffic.d2h_bytes);
    expect_all_free(stash);
  }
}

TEST_P(PagedStashTest, MeasuresAgainWhenTheScheduleChanges) {
  PaddedLayers model = layers(uneven_rows);
  PagedStash stash(device(), kMeasured);
  for (const Actions& actions : orders()) {
    const auto expected = model.run(actions, nullptr);
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(model.run(actions, &stash) == expected);
      EXPECT_EQ(number(stash.overflow()), 0);
      EXPECT_EQ(stash.pools().empty(), step == 0);
    }
  }
}

// The same schedule with other tensors: right at once, and measured in the step after.
TEST_P(PagedStashTest, MeasuresAgainWhenTheLayersChange) {
  const Actions actions = orders()[2];
  PaddedLayers two = layers(half_of_the_rows, 2), four = layers(half_of_the_rows, 4);
  const auto expected = two.run(actions, nullptr);
  PagedStash stash(device(), kMeasured);
  four.run(actions, &stash);
  four.run(actions, &stash);
  EXPECT_FALSE(stash.pools().empty());
  EXPECT_TRUE(two.run(actions, &stash) == expected);
  EXPECT_TRUE(two.run(actions, &stash) == expected);
  EXPECT_TRUE(stash.pools().empty());
  EXPECT_TRUE(two.run(actions, &stash) == expected);
  EXPECT_FALSE(stash.pools().empty());
  EXPECT_EQ(number(stash.overflow()), 0);
}

// What is saved for the later of two passes has the size of its rows, in every step.
TEST_P(PagedStashTest, SavesTheMemoryOfPadding) {
  constexpr int kLayers = 8;
  const Actions actions = {forward(0), forward(1), backward(0), backward(1)};
  const auto saved_bytes = [&](PagedStash* stash, int64_t rows) {
    PaddedLayers model = layers([=](PassId, int) { return rows; }, kLayers);
    int64_t bytes = 0;
    model.after_action = [&](PassAction action) {
      stream().synchronize();
      if (action == forward(1)) bytes = device().memory().current();
    };
    for (int step = 0; step < 2; ++step) model.run(actions, stash);
    return bytes;
  };
  const int64_t row_bytes =
      (PaddedLayers::kHidden + PaddedLayers::kFfn) * static_cast<int64_t>(size_of(dtype()));
  PagedStash stash(device(), kMeasured);
  const int64_t kept = saved_bytes(nullptr, 4), packed = saved_bytes(&stash, 4);
  // Of 2 passes, 20 of 24 rows; less what is on its way, and lists of pages.
  const int64_t padding = 2 * kLayers * 20 * row_bytes;
  EXPECT_GT(kept - packed, padding / 2);
}

// Tensors so large that using them at once would be too early.
TEST_P(PagedStashTest, UseWaitsForWhatIsOnItsWay) {
  const Actions actions = {forward(0), forward(1), backward(0), backward(1)};
  const Shape shape{1024, 1024};
  const Tensor num_rows = from_host(stream(), "num rows", std::vector<int32_t>{1000}, {1});
  std::map<PassId, Tensor> expected;
  for (int micro = 0; micro < 2; ++micro)
    expected[{0, micro}] = random(shape, static_cast<uint64_t>(micro));
  PagedStash stash(device(), kMeasured);
  for (int step = 0; step < 3; ++step) {
    std::map<PassId, Tape> tapes;
    std::vector<std::pair<Tensor, Tensor>> outcome;
    stash.begin_step(actions, stream());
    for (const PassAction& action : actions) {
      const Tensor& values = expected.at(action.pass);
      if (action.forward) {
        const Tensor x = Tensor::empty(stream(), "x", shape, dtype());
        stream().copy(x, values);
        Tape& tape = tapes.try_emplace(action.pass, Tape::Mode::Record, &stash.policy(action.pass))
                         .first->second;
        tape.save(stream(), Label::ExpertFc1, {x}, num_rows);
        tape.forward_done(stream());
      } else {
        const auto [x] = tapes.at(action.pass).load<1>(stream(), Label::ExpertFc1);
        outcome.emplace_back(Tensor::empty(stream(), "outcome", shape, dtype()), values);
        stream().copy(outcome.back().first, x);
        tapes.at(action.pass).backward_done(stream());
      }
    }
    stash.end_step(stream());
    for (const auto& [actual, values] : outcome)
      expect_same_bits(stream(), actual.rows(0, 1000), values.rows(0, 1000));
  }
  EXPECT_EQ(number(stash.overflow()), 0);
}

TEST_P(PagedStashTest, RefusesAPassTwice) {
  PagedStash stash(device(), kMeasured);
  const Actions actions = orders()[0];
  stash.begin_step(actions, stream());
  stash.policy({0, 0});
  EXPECT_THAT(
      [&] {
        stash.policy({0, 0});
      },
      ThrowsMessage<Error>(HasSubstr("micro-batch 0 goes through chunk 0 twice")));
  EXPECT_THAT(
      [&] {
        stash.policy({0, 9});
      },
      ThrowsMessage<Error>(HasSubstr("micro-batch 9 of chunk 0 is not in the schedule")));
}

INSTANTIATE_TEST_SUITE_P(Devices, PagedStashTest, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
