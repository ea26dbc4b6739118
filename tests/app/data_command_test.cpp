#include "app/data_command.h"

#include "core/check.h"
#include "tests/support/temp_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ferry {
namespace {

using ::testing::HasSubstr;

class DataCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(dir_ / "a.jsonl") << "{\"text\": \"abc\"}\n{\"text\": \"b\u00e9!\"}\n";
  }

  // What `ferry ARGUMENTS` prints; its errors pass through.
  std::string ferry(const std::vector<std::string>& arguments) {
    CLI::App root{"ferry"};
    add_data_command(root);
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    ::testing::internal::CaptureStdout();
    try {
      root.parse(reversed);
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    std::fflush(stdout);
    return ::testing::internal::GetCapturedStdout();
  }

  std::string build(const std::string& name) {
    return ferry({"data", "build", dir_ / "a.jsonl", "-o", dir_ / name, "--append-eod"});
  }

  void expect_error(ExitCode code, const std::string& part,
                    const std::vector<std::string>& arguments) {
    try {
      ferry(arguments);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }

  testing::TempDir dir_;
};

TEST_F(DataCommand, BuildSaysWhatItWrote) {
  EXPECT_THAT(build("out"),
              HasSubstr("2 documents, 9 tokens of the byte tokenizer (257 ids), 7 bytes"));
  expect_error(ExitCode::Usage, "out.bin exists already",
               {"data", "build", dir_ / "a.jsonl", "-o", dir_ / "out"});
  EXPECT_THAT(ferry({"data", "build", dir_ / "a.jsonl", "-o", dir_ / "out", "--overwrite",
                     "--vocab-check", "--tokenizer", FERRY_SOURCE_DIR "/configs/data/gpt2"}),
              HasSubstr("50257 ids"));
}

TEST_F(DataCommand, InfoPrintsTextAndJson) {
  build("out");
  const std::string text = ferry({"data", "info", dir_ / "out"});
  for (const char* part : {"documents        2\n", "tokens           9\n", "dtype            u16\n",
                           "bytes            18\n", "largest id       256\n",
                           "4 min, 4.5 mean, 5 max", "unigram entropy", "bigram entropy"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const auto json = nlohmann::json::parse(ferry({"data", "info", dir_ / "out", "--json"}));
  EXPECT_EQ(json.at("documents"), 2);
  EXPECT_EQ(json.at("tokens"), 9);
  EXPECT_EQ(json.at("dtype"), "u16");
  EXPECT_EQ(json.at("bytes"), 18);
  EXPECT_EQ(json.at("largest_id"), 256);
  EXPECT_EQ(json.at("length_max"), 5);
  // a, c, 0xc3, 0xa9 and ! once; b and 256 twice.
  EXPECT_NEAR(json.at("unigram_entropy_nats"), std::log(9.0) - 4.0 / 9 * std::log(2.0), 1e-12);
  EXPECT_NEAR(json.at("bigram_entropy_nats"), 2.0 / 7 * std::log(2.0), 1e-12);
}

TEST_F(DataCommand, CheckVerifiesEveryId) {
  build("out");
  EXPECT_THAT(ferry({"data", "check", dir_ / "out", "--vocab", "257"}),
              HasSubstr("ok, 2 documents, 9 tokens, largest id 256"));
  expect_error(ExitCode::Data, "document 0, token 3 (byte 6 of the file): token id 256",
               {"data", "check", dir_ / "out", "--vocab", "256"});
  std::filesystem::resize_file(dir_ / "out.bin", 17);
  expect_error(ExitCode::Data, "truncated", {"data", "check", dir_ / "out"});
}

TEST_F(DataCommand, DumpPrintsDocumentsAndSamples) {
  build("out");
  EXPECT_THAT(ferry({"data", "dump", dir_ / "out", "--document", "1"}),
              HasSubstr("5 tokens\n98 195 169 33 256\n"));
  EXPECT_THAT(ferry({"data", "dump", dir_ / "out", "--tokenizer", "byte"}), HasSubstr("\nabc\n"));
  EXPECT_THAT(ferry({"data", "dump", dir_ / "out", "--sample", "1", "--seq", "4"}),
              HasSubstr("2 samples of 4 tokens, 1 epoch, 5 tokens\n"));
  expect_error(ExitCode::Usage, "no document 2", {"data", "dump", dir_ / "out", "--document", "2"});
  expect_error(ExitCode::Usage, "no sample 2",
               {"data", "dump", dir_ / "out", "--sample", "2", "--seq", "4"});
  EXPECT_THROW(ferry({"data", "dump", dir_ / "out", "--sample", "1"}), CLI::ParseError);
}

TEST_F(DataCommand, ReadsOtherKinds) {
  std::ofstream(dir_ / "raw.bin", std::ios::binary) << std::string("\x01\x00\x00\x00\x02\x00", 6);
  EXPECT_THAT(
      ferry({"data", "dump", dir_ / "raw.bin", "--kind", "raw", "--eod", "0", "--document", "1"}),
      HasSubstr("1 tokens\n2\n"));
  EXPECT_THAT(
      ferry({"data", "dump", dir_ / "raw.bin", "--kind", "raw", "--sample", "0", "--seq", "2"}),
      HasSubstr("3 tokens\n1 0 2\n"));
  expect_error(ExitCode::Data, "too few for the llm.c header",
               {"data", "info", dir_ / "raw.bin", "--kind", "llmc"});
  EXPECT_THROW(ferry({"data", "info", dir_ / "raw.bin", "--kind", "npy"}), CLI::ParseError);
}

TEST_F(DataCommand, MergePutsFilesOneAfterTheOther) {
  build("out");
  EXPECT_THAT(ferry({"data", "merge", dir_ / "out", dir_ / "out", "-o", dir_ / "twice"}),
              HasSubstr("4 documents, 18 tokens"));
}

TEST_F(DataCommand, MissingFilesSayHowToMakeThem) {
  for (const char* command : {"info", "check", "dump"}) {
    expect_error(ExitCode::Data, "ferry data build", {"data", command, dir_ / "absent"});
  }
}

TEST_F(DataCommand, EverySubcommandHasAnExample) {
  CLI::App root{"ferry"};
  add_data_command(root);
  const auto commands = root.get_subcommand("data")->get_subcommands(nullptr);
  EXPECT_EQ(commands.size(), 5u);
  for (const CLI::App* command : commands) {
    EXPECT_THAT(command->get_footer(), HasSubstr("ferry data " + command->get_name() + " "));
  }
  EXPECT_THROW(ferry({"data"}), CLI::ParseError);
}

}  // namespace
}  // namespace ferry
