// Wherever the optimizer's state lives, a run gives the bits of one with all of it on the device.

#include "app/optimizer_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "app/state_snapshot.h"
#include "checkpoint/directory.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry::testing {
namespace {

using Overrides = std::vector<std::string>;

Overrides joined(Overrides first, const Overrides& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::string text_of(const Overrides& overrides) {
  std::string text;
  for (const std::string& override : overrides) text += override + ' ';
  return text;
}

Overrides offload(const std::string& fraction, bool overlap) {
  return {"optimizer.offload.enabled=true", "optimizer.offload.fraction=" + fraction,
          concat("optimizer.offload.overlap_d2h_h2d=", overlap ? "true" : "false"),
          "optimizer.offload.threads=2"};
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights, state;
  std::string root;  // of the checkpoint after the last step
  std::filesystem::path directory;
  int64_t num_again = 0, host_elements = 0;

  // Bit for bit.
  void expect_same(const Trained& other, const std::string& what) const {
    EXPECT_EQ(losses, other.losses) << what;
    EXPECT_EQ(norms, other.norms) << what;
    EXPECT_EQ(weights, other.weights) << what;
    EXPECT_EQ(state, other.state) << what;
  }
};

struct Course {
  int steps = 5;
  std::filesystem::path save = {};  // run directory of a checkpoint after them
  std::filesystem::path load = {};  // checkpoint to begin with
  int64_t steps_before = 0;
};

Trained train(const RunConfig& config, int ranks, const Course& course = {}) {
  Trained result;
  Assembly weights, state;
  run_ranks(ranks, [&](Group& world, Control& control) {
    TrainingRank rank(config, world);
    TrainModel& model = rank.model();
    EXPECT_EQ(model.hybrid_optimizer() != nullptr, config.optimizer.offload.enabled);
    if (!course.load.empty()) {
      model.load(Checkpoint::open(course.load), /*weights_only=*/false);
      rank.go_on_after(course.steps_before);
    }
    std::vector<double> losses, norms;
    for (int step = 0; step < course.steps; ++step) {
      const StepNumbers numbers = rank.step();
      losses.push_back(numbers.loss);
      norms.push_back(numbers.norm);
    }
    weights.add_values(rank);
    state.add_state(rank);
    if (world.rank() == 0) {
      result.losses = losses;
      result.norms = norms;
      result.num_again = rank.num_again();
      if (model.hybrid_optimizer() != nullptr)
        result.host_elements = model.hybrid_optimizer()->times().host_elements;
    }
    if (course.save.empty()) return;
    const Attempt attempt = begin_attempt(course.save, control);
    const StateSnapshot snapshot = StateSnapshot::now(snapshot_source(model));
    SaveRequest request;
    request.run_dir = course.save;
    request.step = course.steps_before + course.steps;
    request.attempt = attempt.number;
    request.slices = snapshot.slices();
    request.state = to_state({request.step, 8 * request.step, 128 * request.step}, 1234, 1e-3, 1);
    request.verify = false;  // it is read back anyway
    const SaveReport report = save_checkpoint(request, control);
    if (world.rank() == 0) result.root = report.root, result.directory = report.directory;
  });
  result.weights = weights.whole();
  result.state = state.whole();
  return result;
}

TEST(FewThreadsNotice, NamesTheLaunchersBinding) {
  const std::string notice = few_threads_notice(1, 2, 32);
  EXPECT_THAT(notice, ::testing::HasSubstr("1 of the host's 32 CPUs, though 16 are its share"));
  EXPECT_THAT(notice, ::testing::HasSubstr("--bind-to none"));
  EXPECT_THAT(few_threads_notice(7, 8, 192), ::testing::HasSubstr("7 of"));
  EXPECT_EQ(few_threads_notice(8, 8, 192), "");  // memory does not feed the other 16
  EXPECT_EQ(few_threads_notice(4, 4, 32), "");
  EXPECT_EQ(few_threads_notice(1, 4, 8), "");
  EXPECT_EQ(few_threads_notice(1, 4, 2), "");
}

class OptimizerOffloadTest : public ::testing::Test {
 protected:
  // Four micro-batches a step, on each data-parallel rank.
  RunConfig config(const Overrides& overrides, int ranks = 1) {
    return parallel_run(dir_,
                        joined({"model.tie_embeddings=true", "batch.micro=1", "batch.global=4",
                                "model.hidden_dropout=0.1"},
                               overrides),
                        ranks);
  }
  void expect_all_places_equal(const Overrides& layout, int ranks) {
    const Trained none = train(config(layout, ranks), ranks);
    for (const char* fraction : {"0", "0.5", "1"})
      for (const bool overlap : {false, true}) {
        const Overrides all = joined(layout, offload(fraction, overlap));
        const Trained moved = train(config(all, ranks), ranks);
        moved.expect_same(none, text_of(all));
        EXPECT_EQ(moved.host_elements > 0, fraction != std::string("0")) << text_of(all);
      }
  }
  std::filesystem::path fresh() { return dir_ / concat("saved", ++num_saved_); }

  TempDir dir_;
  int num_saved_ = 0;
};

const Overrides kBf16{"model.precision=bf16"};

TEST_F(OptimizerOffloadTest, OneRank) { expect_all_places_equal(kBf16, 1); }

TEST_F(OptimizerOffloadTest, OneRankWhoseValuesAreMasters) { expect_all_places_equal({}, 1); }

TEST_F(OptimizerOffloadTest, EmbeddingsThatAreNotTied) {
  expect_all_places_equal(joined(kBf16, {"model.tie_embeddings=false"}), 1);
}

TEST_F(OptimizerOffloadTest, DistributedOptimizer) {
  expect_all_places_equal(joined(kBf16, {"batch.global=8", "optimizer.distributed=true"}), 2);
}

TEST_F(OptimizerOffloadTest, DistributedOptimizerThatOverlaps) {
  expect_all_places_equal({"batch.global=8", "optimizer.overlap_param_gather=true"}, 2);
}

TEST_F(OptimizerOffloadTest, GradientsThatAreReducedAtTheEnd) {
  expect_all_places_equal({"batch.global=8", "optimizer.overlap_grad_reduce=false"}, 2);
}

TEST_F(OptimizerOffloadTest, FullStateOnEveryRank) {
  expect_all_places_equal(joined(kBf16, {"batch.global=8", "optimizer.distributed=false"}), 2);
}

TEST_F(OptimizerOffloadTest, SharedExperts) {
  expect_all_places_equal(joined(kBf16, {"batch.global=8", "parallel.expert=2"}), 2);
}

TEST_F(OptimizerOffloadTest, Pipeline) {
  expect_all_places_equal(joined(kBf16, {"parallel.pipeline=2"}), 2);
}

TEST_F(OptimizerOffloadTest, VirtualStages) {
  expect_all_places_equal(joined(kBf16, {"parallel.pipeline=2", "parallel.virtual_stages=2"}), 2);
}

TEST_F(OptimizerOffloadTest, TensorParallel) {
  expect_all_places_equal({"parallel.tensor=2", "parallel.sequence=true"}, 2);
}

// The tied weight is gathered over both stages, while each waits for other values of its own.
TEST_F(OptimizerOffloadTest, PipelineOfDistributedOptimizersThatOverlap) {
  for (const char* stages : {"1", "2"})
    expect_all_places_equal(
        joined(kBf16, {"parallel.pipeline=2", concat("parallel.virtual_stages=", stages),
                       "batch.global=8", "optimizer.overlap_param_gather=true"}),
        4);
}

// Field bug: the norm was taken of other gradients than those of the update.
TEST_F(OptimizerOffloadTest, ClippedStepsHaveTheSameNormsAndWeights) {
  const Overrides layouts[] = {kBf16, joined(kBf16, {"batch.global=8", "parallel.expert=2"})};
  for (const Overrides& layout : layouts) {
    const int ranks = layout.size() > 1 ? 2 : 1;
    const double first = train(config(layout, ranks), ranks, {.steps = 1}).norms[0];
    const Overrides clipped = joined(layout, {"optimizer.clip_norm=" + std::to_string(first / 2)});
    const Trained none = train(config(clipped, ranks), ranks);
    EXPECT_NE(none.weights, train(config(layout, ranks), ranks).weights) << "not clipped";
    EXPECT_EQ(none.norms[0], first) << "logged before clipping";
    for (const char* fraction : {"0", "0.5", "1"})
      for (const bool overlap : {false, true})
        train(config(joined(clipped, offload(fraction, overlap)), ranks), ranks)
            .expect_same(none, concat("fraction ", fraction, ", overlap ", overlap));
  }
}

TEST_F(OptimizerOffloadTest, GoesTogetherWithActivationsThatMove) {
  const Overrides moved[] = {
      {"activation_offload.enabled=true", "activation_offload.min_tensor_elements=1",
       "activation_offload.modules=[core_attn,expert_fc1,moe_act]",
       "recompute.granularity=selective", "recompute.modules=[layernorm]"},
      {"layer_offload.layers=2", "layer_offload.weights=true"},
      {"recompute.granularity=full", "recompute.method=uniform", "recompute.num_layers=1"}};
  const Trained none = train(config(kBf16), 1);
  for (const Overrides& policy : moved)
    for (const char* fraction : {"0.5", "1"})
      for (const bool overlap : {false, true}) {
        const Overrides all = joined(joined(kBf16, policy), offload(fraction, overlap));
        train(config(all), 1).expect_same(none, text_of(all));
      }
}

// Gradients of the passes that did not count were on their way already.
TEST_F(OptimizerOffloadTest, StepsThatAreMadeAgain) {
  const Overrides limited = joined(kBf16, {"batch.global=8", "parallel.expert=2", "model.seq=96",
                                           "moe.rank_capacity_factor=0.6"});
  const Trained none = train(config(limited, 2), 2);
  EXPECT_GT(none.num_again, 0);
  for (const char* fraction : {"0.5", "1"})
    for (const bool overlap : {false, true}) {
      const Trained moved = train(config(joined(limited, offload(fraction, overlap)), 2), 2);
      moved.expect_same(none, concat("fraction ", fraction, ", overlap ", overlap));
      EXPECT_EQ(moved.num_again, none.num_again);
    }
}

// Field bug: states were restored to where they did not belong.
TEST_F(OptimizerOffloadTest, AnyFractionGoesOnFromAnyOther) {
  const Overrides layouts[] = {kBf16, joined(kBf16, {"batch.global=8", "parallel.expert=2"})};
  for (const Overrides& layout : layouts) {
    const int ranks = layout.size() > 1 ? 2 : 1;
    const Trained all = train(config(layout, ranks), ranks, {.steps = 5});
    const std::string want = train(config(layout, ranks), ranks, {3, fresh()}).root;
    for (const char* from : {"0", "0.5", "1"}) {
      const Trained saved =
          train(config(joined(layout, offload(from, true)), ranks), ranks, {3, fresh()});
      EXPECT_EQ(saved.root, want) << "saved at " << from;
      for (const char* to : {"0", "0.5", "1"}) {
        const std::string what = concat("from ", from, " to ", to);
        const RunConfig next = config(joined(layout, offload(to, true)), ranks);
        EXPECT_EQ(train(next, ranks, {0, fresh(), saved.directory, 3}).root, want) << what;
        const Trained rest = train(next, ranks, {2, {}, saved.directory, 3});
        ASSERT_EQ(rest.losses.size(), 2u);
        for (size_t step : {0, 1}) EXPECT_EQ(rest.losses[step], all.losses[3 + step]) << what;
        EXPECT_EQ(rest.weights, all.weights) << what;
        EXPECT_EQ(rest.state, all.state) << what;
      }
    }
  }
}

TEST_F(OptimizerOffloadTest, NarrowMomentsTrainAndGoOnAsTheyWere) {
  const Overrides wide = joined(kBf16, {"batch.global=8", "optimizer.distributed=true"});
  const Overrides narrow =
      joined(wide, {"optimizer.precision_aware=true", "optimizer.exp_avg_dtype=bf16",
                    "optimizer.exp_avg_sq_dtype=bf16"});
  const Trained of_wide = train(config(wide, 2), 2);
  EXPECT_NE(train(config(narrow, 2), 2).weights, of_wide.weights);
  // With all of the state on the host they are wide.
  train(config(joined(narrow, offload("1", true)), 2), 2).expect_same(of_wide, "on the host");
  const Overrides places[] = {{}, offload("0", true), offload("0.5", true)};
  for (const Overrides& place : places) {
    const RunConfig run = config(joined(narrow, place), 2);
    const Trained all = train(run, 2, {5, fresh()}), saved = train(run, 2, {3, fresh()});
    for (size_t step = 0; step < all.losses.size(); ++step)
      EXPECT_NEAR(all.losses[step], of_wide.losses[step], 0.02 * of_wide.losses[step]);
    const Checkpoint checkpoint = Checkpoint::open(saved.directory);
    for (const StoredTensor& stored : checkpoint.manifest().tensors)
      EXPECT_EQ(stored.dtype, DType::F32) << stored.name;
    const Trained rest = train(run, 2, {2, fresh(), saved.directory, 3});
    EXPECT_EQ(rest.root, all.root) << text_of(place);
    EXPECT_EQ(rest.weights, all.weights) << text_of(place);
    EXPECT_EQ(rest.state, all.state) << text_of(place);
  }
}

TEST_F(OptimizerOffloadTest, SgdTrainsAndGoesOn) {
  const Overrides sgd = joined(kBf16, {"optimizer.name=sgd", "optimizer.momentum=0.8",
                                       "optimizer.lr=0.5", "optimizer.min_lr=0.5"});
  const Trained all = train(config(sgd), 1, {5, fresh()});
  for (const auto& [name, values] : train(config(sgd), 1, {0}).state)
    EXPECT_NE(values, all.state.at(name)) << name << " was not trained";
  EXPECT_TRUE(all.state.contains("momentum embedding/weight"));
  for (const char* fraction : {"0", "0.5", "1"})
    for (const bool overlap : {false, true}) {
      const RunConfig run = config(joined(sgd, offload(fraction, overlap)));
      train(run, 1).expect_same(all, concat("fraction ", fraction, ", overlap ", overlap));
      const Trained saved = train(run, 1, {3, fresh()});
      EXPECT_EQ(train(run, 1, {2, fresh(), saved.directory, 3}).root, all.root);
    }
}

TEST_F(OptimizerOffloadTest, ThePlacesAreThoseOfWhatTheRankUpdates) {
  struct Share {
    const char* fraction;
    double least, most;  // on the host, of the dense elements and of those of experts
  };
  const Share shares[] = {{"none", 0, 0}, {"0", 0, 0}, {"0.5", 0.5, 0.999}, {"1", 1, 1}};
  for (const bool distributed : {false, true}) {
    for (const Share& share : shares) {
      Overrides all =
          joined(kBf16, {"batch.global=8", "parallel.expert=2",
                         concat("optimizer.distributed=", distributed ? "true" : "false")});
      if (share.fraction != std::string("none")) all = joined(all, offload(share.fraction, true));
      const RunConfig run = config(all, 2);
      run_ranks(2, [&](Group& world, Control&) {
        TrainingRank rank(run, world);
        const std::vector<OptimizerPlace> places = rank.model().optimizer_places();
        ASSERT_EQ(places.size(), rank.model().parameters().size());
        double elements[2] = {0, 0}, on_host[2] = {0, 0};  // dense, experts
        for (const OptimizerPlace& place : places) {
          elements[place.expert] += static_cast<double>(place.elements);
          on_host[place.expert] += place.on_host ? static_cast<double>(place.elements) : 0;
        }
        for (const int expert : {0, 1}) {
          EXPECT_GT(elements[expert], 0);
          EXPECT_GE(on_host[expert], share.least * elements[expert]) << text_of(all);
          EXPECT_LE(on_host[expert], share.most * elements[expert]) << text_of(all);
        }
      });
    }
  }
}

}  // namespace
}  // namespace ferry::testing
