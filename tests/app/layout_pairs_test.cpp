// What any layout saved, any other loads and saves again with the same root digest.

#include <gtest/gtest.h>

#include "app/state_snapshot.h"
#include "checkpoint/directory.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry {
namespace {

using testing::TrainingRank;

struct Layout {
  int ranks;
  std::vector<std::string> overrides;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {1, {}},
      {1, {"optimizer.offload.enabled=true"}},
      {2, {"parallel.tensor=2", "optimizer.distributed=false"}},
      {2, {"parallel.expert=2", "optimizer.offload.enabled=true"}},
      {2, {"parallel.pipeline=2"}},
      {2,
       {"parallel.pipeline=2", "parallel.virtual_stages=2", "optimizer.offload.enabled=true",
        "optimizer.offload.fraction=0.5"}},
      {4, {"parallel.tensor=2", "parallel.expert=2"}},
      {2, {"optimizer.distributed=true"}},
      {2,
       {"optimizer.distributed=true", "optimizer.offload.enabled=true",
        "optimizer.offload.fraction=0.5", "optimizer.offload.overlap_d2h_h2d=true"}},
  };
  return all;
}

class LayoutPairs : public ::testing::Test {
 protected:
  /// A checkpoint of a run after one step, or, of `loaded` where it is given, after none.
  SaveReport save(const Layout& layout, const std::string& name, const Path* loaded) {
    std::vector<std::string> overrides = layout.overrides;
    overrides.insert(overrides.end(), {"model.precision=bf16", "model.tie_embeddings=true"});
    const RunConfig config = testing::parallel_run(dir_, overrides, layout.ranks);
    SaveReport report;
    testing::run_ranks(layout.ranks, [&](Group& world, Control& control) {
      TrainingRank rank(config, world);
      if (loaded != nullptr)
        rank.model().load(Checkpoint::open(*loaded), /*weights_only=*/false);
      else
        rank.step();
      rank.model().finish_update();
      const StateSnapshot snapshot = StateSnapshot::now(snapshot_source(rank.model()));
      SaveRequest request;
      request.run_dir = dir_ / name;
      request.step = 1;
      request.attempt = begin_attempt(request.run_dir, control).number;
      request.slices = snapshot.slices();
      request.state = to_state({1, 8, 128}, 1234, 1e-3, 0xabcdef);
      request.verify = false;
      const SaveReport mine = save_checkpoint(request, control);
      if (world.rank() == 0) report = mine;
    });
    return report;
  }

  testing::TempDir dir_;
};

TEST_F(LayoutPairs, SavedAgainByAnyOtherTheRootIsTheSame) {
  for (size_t i = 0; i < layouts().size(); ++i) {
    const SaveReport saved = save(layouts()[i], concat("saved", i), nullptr);
    for (size_t j = 0; j < layouts().size(); ++j) {
      SCOPED_TRACE(::testing::PrintToString(layouts()[i].overrides) + " to " +
                   ::testing::PrintToString(layouts()[j].overrides));
      const SaveReport again = save(layouts()[j], concat("again", i, "-", j), &saved.directory);
      EXPECT_EQ(again.root, saved.root);
      Checkpoint::open(again.directory).verify();
    }
  }
}

}  // namespace
}  // namespace ferry
