#pragma once

// The alphabet in which byte-level BPE files spell tokens: one printable character per byte. Bytes
// 21-7E, A1-AC and AE-FF are the code point of the same number; the other 68, in ascending order,
// are U+0100, U+0101, ... (a space is U+0120).

#include <optional>
#include <string>
#include <string_view>

namespace ferry {

/// Bytes to the alphabet, as UTF-8.
std::string spell_bytes(std::string_view bytes);

/// The alphabet to bytes; nothing if `spelling` has a character outside the alphabet.
std::optional<std::string> unspell_bytes(std::string_view spelling);

}  // namespace ferry
