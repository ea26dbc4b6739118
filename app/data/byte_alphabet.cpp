#include "app/data/byte_alphabet.h"

#include "app/data/utf8.h"

#include <array>
#include <cstdint>

namespace ferry {
namespace {

constexpr int32_t kEnd = 0x100 + 68;

struct Alphabet {
  std::array<int32_t, 256> code_point{};
  std::array<int16_t, kEnd> byte{};  // -1: not in the alphabet

  Alphabet() {
    byte.fill(-1);
    int32_t next = 0x100;
    for (int32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      code_point[b] = printable ? b : next++;
      byte[code_point[b]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet kAlphabet;
  return kAlphabet;
}

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) {
    const int32_t code = alphabet().code_point[static_cast<unsigned char>(c)];
    if (code < 0x80) {
      spelling.push_back(static_cast<char>(code));
    } else {  // all are below U+0800: two bytes
      spelling.push_back(static_cast<char>(0xc0 | code >> 6));
      spelling.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  return spelling;
}

std::optional<std::string> unspell_bytes(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Character character = first_character(spelling);
    if (character.code_point >= kEnd || alphabet().byte[character.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(alphabet().byte[character.code_point]));
    spelling.remove_prefix(character.size);
  }
  return bytes;
}

}  // namespace ferry
