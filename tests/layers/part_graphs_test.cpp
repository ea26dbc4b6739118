#include "layers/part_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers/mlp.h"
#include "tests/support/devices.h"
#include "tests/support/gradients.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

constexpr int64_t kHidden = 24, kTokens = 18;

// An MLP as graphs, and micro-batches that are under way at once.
class PartGraphsTest : public DeviceTest {
 protected:
  struct MicroBatch {
    explicit MicroBatch(PartGraphsTest& test, uint64_t seed, int64_t num_tokens = kTokens,
                        int64_t num_loss_tokens = kTokens, bool training = true)
        : x(random_tensor(test.stream(), {num_tokens, kHidden}, test.dtype(), seed)),
          dy(random_tensor(test.stream(), {num_tokens, kHidden}, test.dtype(), seed + 100)),
          tape(training ? Tape::Mode::Record : Tape::Mode::Off),
          pass(test.stream(), tape, batch, test.totals_, {}, training) {
      batch.batch = 1;
      batch.seq = num_tokens;
      batch.num_loss_tokens = num_loss_tokens;
    }
    Tensor x, dy;
    Batch batch;
    Tape tape;
    Pass pass;
  };

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    allocate_parameters(stream(), graphed_, 1, 0.2);
    allocate_parameters(stream(), plain_, 1, 0.2);
  }
  MlpConfig config() const { return {kHidden, 40, 0.02, 0.02, dtype()}; }
  std::unique_ptr<Module> make() { return std::make_unique<Mlp>("mlp", config(), Label::Mlp); }

  void forward(MicroBatch& batch, uint64_t seed) {
    MicroBatch same(*this, seed, batch.x.dim(0));
    expect_same_bits(stream(), graphed_.forward(batch.pass, batch.x),
                     plain_.forward(same.pass, same.x));
  }
  // Forward and backward of the plain module give the same dx.
  void backward(MicroBatch& batch) {
    Tape tape;
    Pass pass(stream(), tape, batch.batch, totals_, {}, true);
    plain_.forward(pass, batch.x);
    expect_same_bits(stream(), graphed_.backward(batch.pass, batch.dy),
                     plain_.backward(pass, batch.dy));
    EXPECT_TRUE(batch.tape.empty());
  }
  void expect_same_gradients() {
    std::vector<Tensor> gradients;
    plain_.visit([&](Parameter& p) { gradients.push_back(p.grad); });
    size_t i = 0;
    graphed_.visit([&](Parameter& p) { expect_same_bits(stream(), p.grad, gradients[i++]); });
  }

  StepTotals totals_;
  PartGraphs graphs_;
  GraphedModule graphed_{make(), graphs_};
  Mlp plain_{"mlp", config(), Label::Mlp};
};

TEST_P(PartGraphsTest, RunsAsEverUntilItIsUsed) {
  MicroBatch first(*this, 1);
  forward(first, 1);
  EXPECT_FALSE(first.tape.empty());
  // Graphs from now on, but not of what is under way.
  graphs_.use();
  backward(first);
  EXPECT_EQ(graphs_.num_graphs(), 0);
  MicroBatch second(*this, 2);
  forward(second, 2);
  EXPECT_TRUE(second.tape.empty()) << "saved in the graph";
  backward(second);
  EXPECT_EQ(graphs_.num_graphs(), 2);
  EXPECT_EQ(graphs_.num_launches(), 2);
  EXPECT_GT(graphs_.num_nodes(), 4);
  expect_same_gradients();
}

TEST_P(PartGraphsTest, EachMicroBatchUnderWayHasItsOwn) {
  graphs_.use();
  for (int time = 0; time < 3; ++time) {
    const uint64_t seed = 10 * static_cast<uint64_t>(time);
    MicroBatch a(*this, seed + 1), b(*this, seed + 2), c(*this, seed + 3);
    forward(a, seed + 1);
    forward(b, seed + 2);
    backward(a);
    forward(c, seed + 3);  // where a was
    backward(b);
    backward(c);
    EXPECT_EQ(graphs_.num_graphs(), 4);
    EXPECT_EQ(graphs_.num_launches(), 6 * (time + 1));
  }
  expect_same_gradients();
}

TEST_P(PartGraphsTest, OtherKindsOfMicroBatchesRunAsEver) {
  graphs_.use();
  MicroBatch first(*this, 1);
  forward(first, 1);
  backward(first);
  MicroBatch shorter(*this, 2, kTokens / 2), fewer_labels(*this, 3, kTokens, kTokens - 1);
  MicroBatch evaluated(*this, 4, kTokens, kTokens, /*training=*/false);
  forward(shorter, 2);
  backward(shorter);
  forward(fewer_labels, 3);
  backward(fewer_labels);
  forward(evaluated, 4);
  EXPECT_EQ(graphs_.num_launches(), 2);
  expect_same_gradients();
}

TEST_P(PartGraphsTest, ForgetsWhatIsDropped) {
  graphs_.use();
  for (int time = 0; time < 2; ++time) {
    MicroBatch batch(*this, 1);
    forward(batch, 1);
    backward(batch);
    EXPECT_EQ(graphs_.num_graphs(), time == 0 ? 2 : 0);
    graphs_.drop();
    EXPECT_EQ(graphs_.num_graphs(), 0);
  }
  graphs_.use();
  // Now of other micro-batches.
  MicroBatch batch(*this, 2, kTokens / 2);
  forward(batch, 2);
  backward(batch);
  EXPECT_EQ(graphs_.num_graphs(), 2);
  expect_same_gradients();
}

TEST_P(PartGraphsTest, TellsOfEachLaunch) {
  int num_launches = 0;
  graphs_.on_launch([&](Stream& on) {
    EXPECT_EQ(&on, &stream());
    ++num_launches;
  });
  graphs_.use();
  MicroBatch batch(*this, 1);
  forward(batch, 1);
  EXPECT_EQ(num_launches, 1);
  backward(batch);
  EXPECT_EQ(num_launches, 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, PartGraphsTest, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
