#include "app/data/utf8.h"

#include "core/check.h"

#include <utf8proc.h>
#include <array>
#include <cstdlib>
#include <memory>

namespace ferry {
namespace {

// Size of the character at the start of `text`, or a negative number if it is ill-formed.
utf8proc_ssize_t iterate(std::string_view text, int32_t* code_point) {
  return utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                          static_cast<utf8proc_ssize_t>(text.size()), code_point);
}

bool is_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

CharacterClass look_up(int32_t code_point) {
  if (is_space(code_point)) return CharacterClass::Space;
  switch (utf8proc_category(code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharacterClass::Letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharacterClass::Number;
    default:
      return CharacterClass::Other;
  }
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  int32_t code_point;
  for (size_t i = 0; i < text.size();) {
    const utf8proc_ssize_t size = iterate(text.substr(i), &code_point);
    if (size <= 0) return i;
    i += static_cast<size_t>(size);
  }
  return std::nullopt;
}

Character first_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return {first, 1};
  Character character{};
  const utf8proc_ssize_t size = iterate(text, &character.code_point);
  if (size <= 0) fail(ExitCode::Data, "the text is not valid UTF-8");
  character.size = static_cast<size_t>(size);
  return character;
}

CharacterClass class_of(int32_t code_point) {
  static const auto kAscii = [] {
    std::array<CharacterClass, 128> classes{};
    for (int32_t c = 0; c < 128; ++c) classes[c] = look_up(c);
    return classes;
  }();
  return code_point < 128 ? kAscii[code_point] : look_up(code_point);
}

std::string to_nfc(std::string_view text) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size < 0) fail(ExitCode::Data, "the text cannot be normalised: ", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(mapped), static_cast<size_t>(size)};
}

}  // namespace ferry
