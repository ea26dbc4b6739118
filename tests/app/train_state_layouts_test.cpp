// A checkpoint that one layout wrote, read in others: every weight, master and moment is the same
// bits on every rank that has it.

#include <gtest/gtest.h>

#include "app/state_snapshot.h"
#include "app/train_state.h"
#include "checkpoint/directory.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry {
namespace {

using testing::Assembly;
using testing::TrainingRank;
using Layout = std::vector<std::string>;

class TrainStateLayouts : public ::testing::Test {
 protected:
  RunConfig config(Layout layout, int ranks, const Layout& model) {
    layout.insert(layout.end(), model.begin(), model.end());
    return testing::parallel_run(dir_, layout, ranks);
  }

  // Collective.
  static SaveReport save(TrainingRank& rank, Control& control, const std::filesystem::path& run) {
    const Attempt attempt = begin_attempt(run, control);
    rank.model().finish_update();
    const StateSnapshot snapshot = StateSnapshot::now(snapshot_source(rank.model()));
    SaveRequest request;
    request.run_dir = run;
    request.step = 1;
    request.attempt = attempt.number;
    request.slices = snapshot.slices();
    request.state = to_state({1, 8, 128}, 1234, 1e-3, 0xabcdef);
    request.verify = false;  // it is read back anyway
    return save_checkpoint(request, control);
  }

  struct Saved {
    std::filesystem::path directory;
    std::string root;
    std::map<std::string, std::vector<double>> weights, state;
  };

  // After a step, so that moments are not zero.
  Saved train_and_save(const RunConfig& config, int ranks, const std::string& name) {
    Saved saved;
    Assembly weights, state;
    testing::run_ranks(ranks, [&](Group& world, Control& control) {
      TrainingRank rank(config, world);
      rank.step();
      const SaveReport report = save(rank, control, dir_ / name);
      weights.add_values(rank);
      state.add_state(rank);
      if (world.rank() == 0) saved.directory = report.directory, saved.root = report.root;
    });
    state.expect_each_once();
    saved.weights = weights.whole();
    saved.state = state.whole();
    return saved;
  }

  void expect_loads(const RunConfig& config, int ranks, const Saved& saved,
                    const std::string& name) {
    Assembly weights, state, for_evaluation;
    testing::run_ranks(ranks, [&](Group& world, Control& control) {
      TrainingRank rank(config, world);
      const Checkpoint checkpoint = Checkpoint::open(saved.directory);
      rank.model().load(checkpoint, /*weights_only=*/false);
      weights.add_values(rank);
      state.add_state(rank);
      const SaveReport report = save(rank, control, dir_ / name);
      EXPECT_EQ(report.root, saved.root) << "saved again";
      rank.step();
      rank.model().finish_update();
      load_weights(rank.stream(), checkpoint, rank.model().parameters());
      for_evaluation.add_values(rank);
    });
    EXPECT_EQ(weights.whole(), saved.weights);
    EXPECT_EQ(state.whole(), saved.state);
    EXPECT_EQ(for_evaluation.whole(), saved.weights);
  }

  testing::TempDir dir_;
};

TEST_F(TrainStateLayouts, AnyLayoutReadsWhatOneRankWrote) {
  for (const Layout& model : {Layout{"model.precision=fp64", "model.tie_embeddings=true"},
                              Layout{"model.precision=bf16", "model.tie_embeddings=false"}}) {
    const Saved saved = train_and_save(config({}, 1, model), 1, model[0]);
    int count = 0;
    for (const Layout& layout : testing::layouts_of_four()) {
      SCOPED_TRACE(::testing::PrintToString(layout) + ::testing::PrintToString(model));
      expect_loads(config(layout, 4, model), 4, saved, concat(model[0], ++count));
    }
  }
}

TEST_F(TrainStateLayouts, AnyLayoutReadsWhatAnotherWrote) {
  const std::vector<Layout> layouts = testing::layouts_of_four();
  const Layout model = {"model.precision=bf16"};
  for (size_t i = 0; i < layouts.size(); ++i) {
    // Each is written once, and read by the next but two: another axis, and one rank.
    const Layout& to = layouts[(i + 3) % layouts.size()];
    SCOPED_TRACE(::testing::PrintToString(layouts[i]) + " to " + ::testing::PrintToString(to));
    const Saved saved = train_and_save(config(layouts[i], 4, model), 4, concat("from", i));
    Layout same_ends = model;
    const bool tied = config(layouts[i], 4, model).model.tie_embeddings;
    same_ends.push_back(concat("model.tie_embeddings=", tied ? "true" : "false"));
    expect_loads(config(to, 4, same_ends), 4, saved, concat("to", i));
    expect_loads(config({}, 1, same_ends), 1, saved, concat("one", i));
  }
}

TEST_F(TrainStateLayouts, WeightsOnlyLeavesMomentsZero) {
  const Saved saved = train_and_save(config({}, 1, {}), 1, "saved");
  const RunConfig four = config({"parallel.tensor=2"}, 4, {});
  Assembly weights, state;
  testing::run_ranks(4, [&](Group& world, Control&) {
    TrainingRank rank(four, world);
    rank.model().load(Checkpoint::open(saved.directory), /*weights_only=*/true);
    weights.add_values(rank);
    state.add_state(rank);
  });
  EXPECT_EQ(weights.whole(), saved.weights);
  for (const auto& [name, values] : state.whole()) {
    const std::vector<double> zeros(values.size());
    EXPECT_EQ(values, name.starts_with("master") ? saved.state.at(name) : zeros) << name;
  }
}

}  // namespace
}  // namespace ferry
