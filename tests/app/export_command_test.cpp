#include "app/export_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/app/huggingface_run.h"

namespace ferry {
namespace {

using testing::CommandResult;
using ::testing::HasSubstr;
using testing::small_run;
using testing::TempDir;
namespace fs = std::filesystem;

class ExportCommand : public ::testing::Test {
 protected:
  CommandResult run(std::vector<std::string> more, const std::string& checkpoint = "") {
    std::vector<std::string> words = {"export", "hf",
                                      checkpoint.empty() ? (dir_ / "run").string() : checkpoint,
                                      (dir_ / "out").string()};
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_command(add_export_command, words);
  }

  TempDir dir_;
};

TEST_F(ExportCommand, WritesConfigWeightsAndTokenizer) {
  testing::save_random_run(small_run(dir_, testing::kFamilyRuns[1]));
  fs::create_directory(dir_ / "tokenizer");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "other.txt"})
    write_text(posix_file_system(), dir_ / "tokenizer" / name, name);
  const CommandResult result =
      run({"--shard-gb", "1e-5", "--dtype", "fp32", "--tokenizer", (dir_ / "tokenizer").string()});
  ASSERT_EQ(result.code, 0) << result.message;
  EXPECT_TRUE(fs::exists(dir_ / "out/model.safetensors.index.json"));
  EXPECT_EQ(read_text(posix_file_system(), dir_ / "out/tokenizer.json", 100), "tokenizer.json");
  EXPECT_TRUE(fs::exists(dir_ / "out/tokenizer_config.json"));
  EXPECT_FALSE(fs::exists(dir_ / "out/other.txt"));
  const std::string config = read_text(posix_file_system(), dir_ / "out/config.json", 1 << 20);
  EXPECT_EQ(parse_config_json(config, "out").model,
            describe_model(small_run(dir_, testing::kFamilyRuns[1])));
  EXPECT_THAT(run({}).message, HasSubstr("is there already"));
}

TEST_F(ExportCommand, RefusesWithoutLeavingAnything) {
  const RunConfig with_dense_layer = small_run(dir_);
  testing::save_random_run(small_run(dir_, testing::kFamilyRuns[0]), &with_dense_layer);
  EXPECT_EQ(run({}).code, 2);
  EXPECT_THAT(run({}).message, HasSubstr("moe.layer_freq"));
  EXPECT_EQ(run({}, (dir_ / "nothing").string()).code, 4);
  EXPECT_THAT(run({}, (dir_ / "nothing").string()).message, HasSubstr("does not exist"));
  EXPECT_EQ(run({"--dtype", "fp16"}).code, 2);
  EXPECT_EQ(run({"--shard-gb", "0"}).code, 2);
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
}

TEST_F(ExportCommand, ATokenizerThatIsNotThereIsAnError) {
  testing::save_random_run(small_run(dir_, testing::kFamilyRuns[0]));
  const CommandResult result = run({"--tokenizer", dir_.path().string()});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.message, HasSubstr("has no tokenizer"));
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST_F(ExportCommand, DamageLeavesNothing) {
  const Checkpoint checkpoint = testing::save_random_run(small_run(dir_, testing::kFamilyRuns[0]));
  const StoredTensor& last = checkpoint.manifest().tensors.back();
  const fs::path shard = checkpoint.directory() / "shard-00000.h5";
  fs::permissions(shard, fs::perms::owner_all);
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(last.slices[0].address + 5);
  file.put('!');
  file.close();
  const CommandResult result = run({}, checkpoint.directory().string());
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.message, HasSubstr("shard-00000.h5"));
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
}

}  // namespace
}  // namespace ferry
