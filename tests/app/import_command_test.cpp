#include "app/import_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "app/export_command.h"
#include "app/train_state.h"
#include "tests/app/huggingface_run.h"

namespace ferry {
namespace {

using testing::CommandResult;
using ::testing::HasSubstr;
using testing::small_run;
using testing::TempDir;
namespace fs = std::filesystem;

class ImportCommand : public ::testing::Test {
 protected:
  CommandResult import(const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> words = {"import", "hf", hf_, (dir_ / "back").string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return testing::run_command(add_import_command, words);
  }
  Checkpoint save_and_export(const std::vector<std::string>& overrides) {
    Checkpoint checkpoint = testing::save_random_run(small_run(dir_, overrides));
    const CommandResult exported = testing::run_command(
        add_export_command, {"export", "hf", (dir_ / "run").string(), hf_, "--dtype", "fp32"});
    EXPECT_EQ(exported.code, 0) << exported.message;
    return checkpoint;
  }
  void expect_nothing_left() {
    EXPECT_FALSE(fs::exists(dir_ / "back"));
    EXPECT_FALSE(fs::exists(dir_ / "back.partial"));
  }

  TempDir dir_;
  std::string hf_ = (dir_ / "hf").string();
};

TEST_F(ImportCommand, GivesBackTheWeightsThatWereExported) {
  for (const auto& overrides : testing::kFamilyRuns) {
    fs::remove_all(dir_ / "run");
    fs::remove_all(dir_ / "hf");
    fs::remove_all(dir_ / "back");
    const Checkpoint first = save_and_export(overrides);
    const CommandResult result = import({"model.seq=8"});
    ASSERT_EQ(result.code, 0) << result.message;
    const Checkpoint second = Checkpoint::open(dir_ / "back/ckpt/step-00000000");
    second.verify();
    EXPECT_EQ(testing::weight_digests(second), testing::weight_digests(first));
    EXPECT_EQ(progress_of(second.state(), "back").step, 0);
    EXPECT_THAT(second.manifest().config, HasSubstr("seq = 8 "));
    EXPECT_THAT(second.manifest().config, HasSubstr("name = \"back\""));
    EXPECT_THAT(second.manifest().config, HasSubstr((dir_ / "back/model.toml").string()));
    EXPECT_EQ(load_config((dir_ / "back/resolved.toml").string(), {}).model.seq, 8);
    EXPECT_EQ(load_config((dir_ / "back/model.toml").string(), {}).model.precision, "fp32");
  }
}

TEST_F(ImportCommand, RefusesWithoutLeavingAnything) {
  EXPECT_THAT(import().message, HasSubstr("has no config.json"));
  save_and_export(testing::kFamilyRuns[0]);
  CommandResult result = import({"model.vocab=65"});
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.message, HasSubstr("model.embed_tokens.weight"));
  result = import({"model.precision=fp64"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.message, HasSubstr("fp64"));
  EXPECT_EQ(import({"model.nothing=1"}).code, 2);
  expect_nothing_left();
  fs::resize_file(dir_ / "hf/model.safetensors", 4000);
  result = import();
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.message, HasSubstr("model.safetensors"));
  expect_nothing_left();
}

TEST_F(ImportCommand, OverwritesNothing) {
  save_and_export(testing::kFamilyRuns[2]);
  fs::create_directory(dir_ / "back");
  EXPECT_THAT(import().message, HasSubstr("is there already"));
  EXPECT_TRUE(fs::is_empty(dir_ / "back"));
}

}  // namespace
}  // namespace ferry
