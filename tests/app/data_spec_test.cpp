#include "app/data_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"
#include "tests/app/violations.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::quickstart;

TEST(TrainingDataSpec, IsWhatTheConfigurationSays) {
  const DataSpec spec = training_data_spec(quickstart({"run.seed=7", "run.steps=60"}), 2);
  EXPECT_EQ(spec.kind, "megatron");
  EXPECT_THAT(spec.paths, ElementsAre("data/quickstart/train"));
  EXPECT_EQ(spec.split, "");
  EXPECT_EQ(spec.split_index, 0);
  EXPECT_EQ(spec.seq, 128);
  EXPECT_EQ(spec.num_samples, 60 * 16);
  EXPECT_EQ(spec.vocab, 264);
  EXPECT_EQ(spec.seed, 7u);
  EXPECT_EQ(spec.eod, 256);  // of the byte tokenizer
}

TEST(TrainingDataSpec, StopAtStepDoesNotChangeTheOrder) {
  EXPECT_EQ(training_data_spec(quickstart({"run.stop_at_step=10"}), 1).num_samples, 300 * 16);
}

TEST(TrainingDataSpec, WithoutATokenizerThereAreOnlyIds) {
  EXPECT_EQ(training_data_spec(quickstart({"data.tokenizer=''"}), 1).eod, -1);
}

TEST(TrainingDataSpec, ATokenizerThatTheVocabularyCannotHoldIsRefused) {
  try {
    training_data_spec(quickstart({"model.vocab=256"}), 1);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("model.vocab = 256 is too small for byte"));
    EXPECT_THAT(error.what(), HasSubstr("its ids go up to 256"));
    EXPECT_THAT(error.what(), HasSubstr("try : model.vocab=257 or more"));
  }
}

TEST(ValidationDataSpec, IsOfItsOwnFiles) {
  const DataSpec spec = validation_data_spec(quickstart({"run.eval_batches=3"}), 1);
  EXPECT_THAT(spec.paths, ElementsAre("data/quickstart/valid"));
  EXPECT_EQ(spec.num_samples, 3 * 16);
}

TEST(ValidationDataSpec, IsAPartOfTheTrainingFilesWithASplit) {
  const RunConfig config = quickstart({"data.valid=[]", "data.split='969,30,1'"});
  const DataSpec spec = validation_data_spec(config, 1);
  EXPECT_THAT(spec.paths, ElementsAre("data/quickstart/train"));
  EXPECT_EQ(spec.split, "969,30,1");
  EXPECT_EQ(spec.split_index, 1);
  EXPECT_EQ(training_data_spec(config, 1).split, "969,30,1");
}

}  // namespace
}  // namespace ferry
