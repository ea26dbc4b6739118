#include "app/data/bpe_files.h"

#include "app/data/tokenizer.h"
#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using testing::expect_error;
using testing::TempDir;

TEST(BpeFiles, MissingFilesAreNamed) {
  TempDir dir;
  expect_error(ExitCode::Data, {"no tokenizer file", "absent.json", "\"byte\""},
               [&] { open_tokenizer(dir / "absent.json"); });
  expect_error(ExitCode::Data, {dir.path().string(), "has no tokenizer.json, encoder.json"},
               [&] { open_tokenizer(dir.path().string()); });
}

TEST(BpeFiles, ReadsThePairOfGpt2) {
  const BpeModel model = load_bpe_model(FERRY_SOURCE_DIR "/configs/data/gpt2");
  EXPECT_EQ(model.vocab.size(), 50257u);
  EXPECT_EQ(model.merges.size(), 50000u);
  EXPECT_EQ(model.merges.front(), (std::pair<std::string, std::string>("\u0120", "t")));
  EXPECT_TRUE(model.added_tokens.empty());
  EXPECT_FALSE(model.nfc || model.add_prefix_space || model.ignore_merges);
}

}  // namespace
}  // namespace ferry
