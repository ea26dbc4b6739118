#include "app/data/utf8.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

TEST(Utf8, FindsIllFormedSequences) {
  EXPECT_EQ(find_invalid_utf8("a\u00e9\u65e5\U0001F642"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("ab\xff"), 2u);
  EXPECT_EQ(find_invalid_utf8("a\xc3"), 1u);             // truncated
  EXPECT_EQ(find_invalid_utf8("\xc0\xaf"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xed\xa0\x80"), 0u);      // surrogate
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\x80"), 0u);
}

TEST(Utf8, NormalisesToNfc) {
  EXPECT_EQ(to_nfc("e\u0301x"), "\u00e9x");
  EXPECT_EQ(to_nfc(""), "");
}

TEST(Utf8, ClassesOfCharacters) {
  EXPECT_EQ(class_of('a'), CharacterClass::Letter);
  EXPECT_EQ(class_of(0x4e00), CharacterClass::Letter);
  EXPECT_EQ(class_of('7'), CharacterClass::Number);
  EXPECT_EQ(class_of(0xbd), CharacterClass::Number);
  for (const int32_t space : {0x09, 0x0d, 0x20, 0x85, 0xa0, 0x1680, 0x200a, 0x2028, 0x3000}) {
    EXPECT_EQ(class_of(space), CharacterClass::Space) << space;
  }
  for (const int32_t other : {0x00, 0x1c, 0x5f, 0x301, 0x180e, 0x200b, 0xfeff}) {
    EXPECT_EQ(class_of(other), CharacterClass::Other) << other;
  }
}

}  // namespace
}  // namespace ferry
