#include "app/micro_batch_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "app/data_spec.h"
#include "tests/app/small_run.h"
#include "tests/support/devices.h"
#include "tests/support/error_of.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

// The model of parallel_run in two parts on one rank.
class MicroBatchWorkTest : public testing::CpuTest {
 protected:
  MicroBatchWorkTest() {
    const std::vector<ModelPart> parts = {{true, 0, 2, false}, {false, 2, 2, true}};
    for (const ModelPart& part : parts) {
      chunks_.push_back(std::make_unique<Gpt>(config_.gpt(), "none", 1, ModelAxes{}, part));
      chunks_.back()->initialise(stream(), 1);
      chunks_.back()->visit([&](Parameter& p) {
        p.grad = Tensor::empty(stream(), "gradients", p.shape, accumulate_dtype(p.dtype));
        stream().zero(p.grad);
      });
    }
    LoaderConfig loader;
    loader.micro = config_.batch.micro;
    loader.global = config_.batch.global;
    loader_ = std::make_unique<Loader>(open_dataset(training_data_spec(config_, 1)), loader);
    feed_ = std::make_unique<BatchFeed>(stream(), *loader_);
  }

  MicroBatchWork make(bool training, std::function<void(int, int)> before_backward = {}) {
    return MicroBatchWork(chunks_, stream(), *feed_, hooks_, {totals_, {}, 0, training},
                          std::move(before_backward));
  }
  double loss() { return read_back_as_double(stream(), totals_.all().at("loss"))[0]; }
  std::map<std::string, std::vector<double>> gradients() {
    std::map<std::string, std::vector<double>> result;
    for (const auto& chunk : chunks_)
      chunk->visit([&](Parameter& p) {
        result[p.name + std::to_string(p.axis == ReduceAxis::Tied)] =
            read_back_as_double(stream(), p.grad);
        stream().zero(p.grad);
      });
    totals_.clear();
    return result;
  }

  testing::TempDir dir_;
  const RunConfig config_ = testing::parallel_run(dir_, {"model.hidden_dropout=0.1"});
  std::vector<std::unique_ptr<Gpt>> chunks_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<BatchFeed> feed_;
  BlockHooks hooks_;
  StepTotals totals_;
};

TEST_F(MicroBatchWorkTest, AMicroBatchGoesThroughAllChunksAndBack) {
  std::vector<std::pair<int, int>> told;
  MicroBatchWork work = make(true, [&](int chunk, int micro) { told.emplace_back(chunk, micro); });
  const Tensor x = work.forward(0, 0, {});
  EXPECT_EQ(concat(x.shape()), concat(Shape{2 * 16, 18}));
  work.forward(1, 0, x);
  EXPECT_EQ(work.num_loss_tokens(), 2 * 16) << "once, not by chunk";
  EXPECT_NEAR(loss() / 32, std::log(65.0), 0.1);
  const Tensor dx = work.backward(1, 0, {});
  EXPECT_EQ(concat(dx.shape()), concat(x.shape()));
  EXPECT_FALSE(work.backward(0, 0, dx).defined());
  work.check_done();
  EXPECT_THAT(told, ElementsAre(std::pair(1, 0), std::pair(0, 0)));
  EXPECT_EQ(loader_->consumed_samples(), 2);
  EXPECT_GE(work.data_seconds(), 0);
}

// Whatever the order of a schedule is, as long as each chunk makes its backward passes in order.
TEST_F(MicroBatchWorkTest, MicroBatchesUnderWayTogetherDoNotMix) {
  std::map<std::string, std::vector<double>> one_by_one;
  {
    MicroBatchWork work = make(true);
    for (int micro = 0; micro < 2; ++micro) {
      work.forward(1, micro, work.forward(0, micro, {}));
      work.backward(0, micro, work.backward(1, micro, {}));
    }
    work.check_done();
    one_by_one = gradients();
  }
  // The same samples again.
  LoaderConfig loader;
  loader.micro = config_.batch.micro;
  loader.global = config_.batch.global;
  Loader again(open_dataset(training_data_spec(config_, 1)), loader);
  BatchFeed feed(stream(), again);
  MicroBatchWork work(chunks_, stream(), feed, hooks_, {totals_, {}, 0, true});
  const Tensor x0 = work.forward(0, 0, {});
  const Tensor x1 = work.forward(0, 1, {});
  work.forward(1, 0, x0);
  work.forward(1, 1, x1);
  EXPECT_EQ(work.num_loss_tokens(), 2 * 2 * 16);
  const Tensor dx0 = work.backward(1, 0, {});
  const Tensor dx1 = work.backward(1, 1, {});
  work.backward(0, 0, dx0);
  work.backward(0, 1, dx1);
  work.check_done();
  EXPECT_EQ(gradients(), one_by_one);
}

TEST_F(MicroBatchWorkTest, EvaluationKeepsNothing) {
  MicroBatchWork work = make(false);
  stream().synchronize();
  const int64_t before = device().memory().current();
  for (int micro = 0; micro < 3; ++micro) {
    const Tensor losses = work.forward(1, micro, work.forward(0, micro, {}));
    EXPECT_EQ(losses.numel(), 2 * 16);
  }
  totals_.clear();
  stream().synchronize();
  // The rope tables of the chunks stay.
  EXPECT_LT(device().memory().current() - before, 10000);
  work.check_done();
  EXPECT_EQ(work.num_loss_tokens(), 3 * 2 * 16);
}

TEST_F(MicroBatchWorkTest, PartsOfAModelAreNoGraphs) {
  EXPECT_THAT(
      error_of(
          ExitCode::Internal,
          [&] {
            MicroBatchWork(chunks_, stream(), *feed_, hooks_, {totals_, {}, 0, true, nullptr, 1});
          }),
      HasSubstr("a micro-batch is a graph only as a whole"));
}

TEST_F(MicroBatchWorkTest, PassesOutOfOrderAreOurBug) {
  MicroBatchWork work = make(true);
  const Tensor x = work.forward(0, 0, {});
  EXPECT_THAT(error_of(ExitCode::Internal, [&] { work.forward(0, 0, {}); }),
              HasSubstr("micro-batch 0 goes through chunk 0 twice"));
  EXPECT_THAT(error_of(ExitCode::Internal, [&] { work.backward(1, 0, {}); }),
              HasSubstr("micro-batch 0 was not in chunk 1"));
  work.forward(1, 0, x);
  EXPECT_THAT(error_of(ExitCode::Internal, [&] { work.check_done(); }),
              HasSubstr("2 micro-batches did not come back"));
}

}  // namespace
}  // namespace ferry
