#include "app/resume_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::small_run;

class ResumeChanges : public ::testing::Test {
 protected:
  static CheckpointSettings saved(const RunConfig& config) {
    return {"run/ckpt/step-00000002", resolved_toml(config), /*step=*/2, /*samples=*/16};
  }
  /// From the small run, changed by `before`, to the one that `now` changes.
  std::vector<ConfigChange> changes(const std::vector<std::string>& now,
                                    const std::vector<std::string>& before = {},
                                    bool same_data = false) {
    return changes_on_resume(saved(small_run(dir_, before)), small_run(dir_, now), 1, same_data);
  }
  /// "key: before -> now", with a "!" where it needs a permission.
  std::vector<std::string> texts(const std::vector<std::string>& now,
                                 const std::vector<std::string>& before = {},
                                 bool same_data = false) {
    std::vector<std::string> all;
    for (const ConfigChange& c : changes(now, before, same_data))
      all.push_back(concat(c.key, ": ", c.before, " -> ", c.now, c.needs_permission ? " !" : ""));
    return all;
  }
  std::string error_of(const std::vector<ConfigChange>& all,
                       const std::vector<std::string>& allowed) {
    try {
      describe_changes(saved(small_run(dir_)), all, allowed);
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ExitCode::Usage));
      return error.what();
    }
    return "no error";
  }
  testing::TempDir dir_;
};

TEST_F(ResumeChanges, EveryKeyHasAClass) {
  const RunConfig config;
  visit_values(config, [](const std::string& key, const Field&, const auto&) {
    EXPECT_TRUE(change_class(key)) << key << ": give it a class in app/resume_changes.cpp";
  });
  EXPECT_FALSE(change_class("debug.new_key"));
  EXPECT_FALSE(change_class("modelling.layers"));
  EXPECT_EQ(change_class("optimizer.lr"), ChangeClass::Numbers);
  EXPECT_EQ(change_class("optimizer.offload.fraction"), ChangeClass::Free);
  EXPECT_EQ(change_class("moe.router.dtype"), ChangeClass::Numbers);
}

TEST_F(ResumeChanges, TheSameConfigurationHasNone) {
  EXPECT_THAT(texts({}), IsEmpty());
  EXPECT_EQ(describe_changes(saved(small_run(dir_)), {}, {}), "");
}

TEST_F(ResumeChanges, WhatChangesNumbersNeedsPermission) {
  EXPECT_THAT(texts({"optimizer.lr=1e-3", "run.seed=5", "moe.top_k=1", "model.hidden_dropout=0.1",
                     "moe.router.pre_softmax=true"}),
              ElementsAre("run.seed: 1234 -> 5 !", "model.hidden_dropout: 0.0 -> 0.1 !",
                          "moe.top_k: 2 -> 1 !", "moe.router.pre_softmax: false -> true !",
                          "optimizer.lr: 0.002 -> 0.001 !"));
  EXPECT_THAT(texts({"batch.global=16"}), ElementsAre("batch.global: 8 -> 16 !"));
}

TEST_F(ResumeChanges, LayoutsAreShownAndTheRestIsFree) {
  EXPECT_THAT(texts({"optimizer.distributed=false", "run.log_every=2", "run.stop_at_step=3",
                     "checkpoint.every=1", "optimizer.offload.enabled=true",
                     "recompute.granularity=selective", "run.name=other"}),
              ElementsAre("optimizer.distributed: true -> false"));
}

TEST_F(ResumeChanges, ALongerRunIsAnotherScheduleAndPerhapsOtherData) {
  EXPECT_THAT(texts({"run.steps=12"}),
              ElementsAre("run.steps: 6 -> 12 !", "optimizer.decay_steps: 6 -> 12 !"));
  EXPECT_THAT(texts({"run.steps=12", "optimizer.decay_steps=6"}, {}, /*same_data=*/true),
              ElementsAre("run.steps: 6 -> 12"));
  const std::string constant = "optimizer.schedule=constant";
  EXPECT_THAT(texts({"run.steps=12", constant}, {constant}, /*same_data=*/true),
              ElementsAre("run.steps: 6 -> 12"));
}

TEST_F(ResumeChanges, DataOfAnotherPlaceMayBeTheSame) {
  const auto with_paths = [&](const std::string& path) {
    RunConfig config = small_run(dir_);
    config.data.train = {path};
    return config;
  };
  const auto all = [&](bool same_data) {
    return changes_on_resume(saved(with_paths("old/text")), with_paths("new/text"), 1, same_data);
  };
  ASSERT_EQ(all(true).size(), 1u);
  EXPECT_FALSE(all(true)[0].needs_permission);
  EXPECT_TRUE(all(false)[0].needs_permission);
  EXPECT_TRUE(changes_samples(all(false)));
  EXPECT_FALSE(changes_samples(changes({"optimizer.lr=1e-3"})));
}

TEST_F(ResumeChanges, ABatchThatFollowsTheRanksIsComparedAsWhatItIs) {
  const std::string per_rank = "batch.global=0";
  const auto on_ranks = [&](int64_t ranks, const std::string& global) {
    return changes_on_resume(saved(small_run(dir_, {per_rank, "batch.micro=2"})),
                             small_run(dir_, {global, "batch.micro=2"}, ranks), ranks, true);
  };
  EXPECT_THAT(on_ranks(4, per_rank), IsEmpty()) << "2 steps of 16 samples: 8 of each, as before";
  ASSERT_EQ(on_ranks(2, per_rank).size(), 1u);
  EXPECT_EQ(on_ranks(2, per_rank)[0].before, "8");
  EXPECT_EQ(on_ranks(2, per_rank)[0].now, "4");
  EXPECT_THAT(on_ranks(2, "batch.global=8"), IsEmpty());
}

TEST_F(ResumeChanges, TheTableHasThreeColumnsAndSaysHowToAllow) {
  const auto all = changes({"optimizer.lr=1e-3", "run.seed=5", "optimizer.distributed=false"});
  EXPECT_EQ(error_of(all, {}),
            "error: run/ckpt/step-00000002 was trained with other settings\n"
            "  --> key           checkpoint  now\n"
            "  --> run.seed      1234        5\n"
            "  --> optimizer.lr  0.002       0.001\n"
            "  why : going on with these gives other numbers than the run that was begun\n"
            "  try : the settings of the checkpoint (ferry ckpt show), or, if the change is meant, "
            "checkpoint.allow_changes=[run.seed,optimizer.lr]");
  EXPECT_THAT(error_of(all, {"optimizer.lr"}),
              AllOf(HasSubstr("allow_changes=[run.seed]"), ::testing::Not(HasSubstr("0.001"))));
  for (const std::vector<std::string>& allowed :
       {std::vector<std::string>{"optimizer.lr", "run.seed"}, {"optimizer", "run"}, {"all"}})
    EXPECT_EQ(describe_changes(saved(small_run(dir_)), all, allowed),
              "\n! settings that are not those of the checkpoint:"
              "\n!   key                    checkpoint  now"
              "\n!   run.seed               1234        5  (allowed)"
              "\n!   optimizer.lr           0.002       0.001  (allowed)"
              "\n!   optimizer.distributed  true        false");
  EXPECT_NE(error_of(all, {"optimizer.l", "run.see"}), "no error") << "no parts of names";
}

TEST_F(ResumeChanges, ConfigurationsOfOtherVersionsAreCompared) {
  CheckpointSettings settings = saved(small_run(dir_));
  settings.config += "\n[checkpoint.other]\nshiny = 5\n";
  const auto unknown = changes_on_resume(settings, small_run(dir_), 1, true);
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0].now, "unknown key here");
  EXPECT_FALSE(unknown[0].needs_permission);

  settings.config = "";  // all keys have their defaults
  bool has_steps = false;
  for (const ConfigChange& change : changes_on_resume(settings, small_run(dir_), 1, false))
    has_steps |= change.key == "run.steps" && change.before == "0" && change.needs_permission;
  EXPECT_TRUE(has_steps);

  settings.config = "[run\n";
  try {
    changes_on_resume(settings, small_run(dir_), 1, true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ExitCode::Storage));
    EXPECT_THAT(error.what(), HasSubstr("the configuration in run/ckpt/step-00000002 cannot be"));
  }
}

TEST_F(ResumeChanges, PermissionsThatNameNothingAreRefused) {
  EXPECT_NO_THROW(small_run(dir_, {"checkpoint.allow_changes=[optimizer.lr,moe,moe.router,all]"}));
  try {
    small_run(dir_, {"checkpoint.allow_changes=[optimiser.lr]"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("checkpoint.allow_changes names optimiser.lr"),
                                    HasSubstr("try : optimizer.lr")));
  }
}

}  // namespace
}  // namespace ferry
