#include "app/data/gpt2_scanner.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t size = scan_gpt2_piece(text);
    pieces.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

TEST(Gpt2Scanner, WordsNumbersAndTheRest) {
  EXPECT_THAT(pieces_of("Hello world 12ab, ...x_y"),
              ElementsAre("Hello", " world", " 12", "ab", ",", " ...", "x", "_", "y"));
}

TEST(Gpt2Scanner, ContractionsComeFirstAndAreLowerCase) {
  EXPECT_THAT(pieces_of("I've they're he'll it's don't I'd I'm"),
              ElementsAre("I", "'ve", " they", "'re", " he", "'ll", " it", "'s", " don", "'t", " I",
                          "'d", " I", "'m"));
  EXPECT_THAT(pieces_of("IT'S"), ElementsAre("IT", "'", "S"));
  EXPECT_THAT(pieces_of("a 'sb"), ElementsAre("a", " '", "sb"));
  EXPECT_THAT(pieces_of("'tis"), ElementsAre("'t", "is"));
}

TEST(Gpt2Scanner, BlanksLeaveTheLastToTheNextWord) {
  EXPECT_THAT(pieces_of("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(pieces_of("a\n\n b"), ElementsAre("a", "\n\n", " b"));
  EXPECT_THAT(pieces_of("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(pieces_of("a\tb"), ElementsAre("a", "\t", "b"));
  EXPECT_THAT(pieces_of("a  "), ElementsAre("a", "  "));
  EXPECT_THAT(pieces_of(" "), ElementsAre(" "));
  EXPECT_THAT(pieces_of("a\u00a0\u2003b"), ElementsAre("a", "\u00a0", "\u2003", "b"));
}

TEST(Gpt2Scanner, UnicodeCategories) {
  EXPECT_THAT(pieces_of("\u65e5\u672c 5\u0665\u00bd\u2167\u2014x"),
              ElementsAre("\u65e5\u672c", " 5\u0665\u00bd\u2167", "\u2014", "x"));
  // A combining mark is neither a letter nor a number.
  EXPECT_THAT(pieces_of("e\u0301a"), ElementsAre("e", "\u0301", "a"));
}

}  // namespace
}  // namespace ferry
