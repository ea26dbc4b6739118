#include "app/data/text_reader.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::TempDir;
using testing::write_bytes;

std::vector<std::string> read_all(const std::vector<std::string>& paths,
                                  const std::string& key = "text") {
  TextReader reader(paths, key);
  std::vector<std::string> documents;
  for (std::string text; reader.next(text);) documents.push_back(text);
  return documents;
}

TEST(TextReader, ReadsJsonLinesAndTextFiles) {
  TempDir dir;
  write_bytes(dir / "a.jsonl",
              "{\"text\": \"one\\nline\"}\r\n\n{\"id\": 1, \"text\": \"\\u00e9\"}");
  write_bytes(dir / "b.txt", "a whole\nfile\n");
  write_bytes(dir / "c.json", "{\"text\": \"\"}\n");
  write_bytes(dir / "empty.txt", "");
  write_bytes(dir / "empty.jsonl", "");
  EXPECT_THAT(read_all({dir / "a.jsonl", dir / "b.txt", dir / "empty.jsonl", dir / "c.json",
                        dir / "empty.txt"}),
              ElementsAre("one\nline", "\u00e9", "a whole\nfile\n", "", ""));
}

TEST(TextReader, ReadsAnotherKey) {
  TempDir dir;
  write_bytes(dir / "a.jsonl", R"({"body": "x", "text": "y"})");
  EXPECT_THAT(read_all({dir / "a.jsonl"}, "body"), ElementsAre("x"));
}

TEST(TextReader, NamesFileAndLine) {
  TempDir dir;
  const std::string good = "{\"text\": \"x\"}\n";
  const auto expect = [&](const std::string& bytes, const std::vector<std::string>& parts) {
    write_bytes(dir / "a.jsonl", bytes);
    expect_error(ExitCode::Data, parts, [&] { read_all({dir / "a.jsonl"}); });
  };
  expect(good + "\n{\"text\": ", {"a.jsonl:3:", "malformed JSON"});
  expect(good + "{\"text\": \"\xff\"}\n", {"a.jsonl:2:", "byte 11 of the line", "not valid UTF-8"});
  expect(good + "{\"text\": \"\\ud800\"}", {"a.jsonl:2:", "malformed JSON"});
  expect(good + "{\"body\": \"x\"}", {"a.jsonl:2:", "key \"text\"", "--json-key"});
  expect("[\"text\"]", {"a.jsonl:1:", "not a JSON object"});
  expect("{\"text\": 5}", {"a.jsonl:1:", "\"text\" is not a string"});
  write_bytes(dir / "b.txt", "one\ntwo \xc3\n");
  expect_error(ExitCode::Data, {"b.txt:2:", "byte 5 of the line"},
               [&] { read_all({dir / "b.txt"}); });
}

TEST(TextReader, RefusesMissingAndUnknownFilesAtOnce) {
  TempDir dir;
  expect_error(ExitCode::Data, {"no text file", "absent.jsonl"},
               [&] { TextReader({dir / "absent.jsonl"}, "text"); });
  expect_error(ExitCode::Data, {"no text file"},
               [&] { TextReader({dir.path().string()}, "text"); });
  write_bytes(dir / "a.jsonl.gz", "");
  expect_error(ExitCode::Data, {"a.jsonl.gz", ".jsonl", "unpack"},
               [&] { TextReader({dir / "a.jsonl.gz"}, "text"); });
}

TEST(TextReader, KnowsItsPosition) {
  TempDir dir;
  write_bytes(dir / "a.jsonl", "\n{\"text\": \"x\"}\n");
  TextReader reader({dir / "a.jsonl"}, "text");
  std::string text;
  ASSERT_TRUE(reader.next(text));
  EXPECT_THAT(reader.position(), ::testing::EndsWith("a.jsonl:2"));
  EXPECT_FALSE(reader.next(text));
}

}  // namespace
}  // namespace ferry
