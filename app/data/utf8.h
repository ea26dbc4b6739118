#pragma once

// UTF-8 text, and the classes of characters that pre-tokenizers distinguish.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ferry {

/// Byte offset of the first ill-formed sequence (overlong, surrogate, truncated, above U+10FFFF).
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// The character at the start of `text`, which is not empty, and its size in bytes. Throws
/// Error(Data) if it is ill-formed.
struct Character {
  int32_t code_point;
  size_t size;
};
Character first_character(std::string_view text);

/// Unicode general categories L* and N*, and the property White_Space.
enum class CharacterClass : uint8_t { Letter, Number, Space, Other };
CharacterClass class_of(int32_t code_point);

/// Unicode normalisation form C.
std::string to_nfc(std::string_view text);

}  // namespace ferry
