#include "app/data/byte_alphabet.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

TEST(ByteAlphabet, SpellsEveryByteOnce) {
  EXPECT_EQ(spell_bytes(" a\n"), "\u0120a\u010a");
  EXPECT_EQ(spell_bytes(std::string(1, '\0')), "\u0100");
  EXPECT_EQ(spell_bytes("\xad"), "\u0143");
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  EXPECT_EQ(unspell_bytes(spell_bytes(all)), all);
  EXPECT_EQ(unspell_bytes("a b"), std::nullopt);
  EXPECT_EQ(unspell_bytes("\u4e00"), std::nullopt);
}

}  // namespace
}  // namespace ferry
