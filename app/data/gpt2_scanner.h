#pragma once

// The pre-tokenizer of GPT-2: text is cut into pieces, and merges never cross a cut.

#include <string_view>

namespace ferry {

/// The pattern that scan_gpt2_piece matches, as tokenizer files write it.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Size in bytes of the first match of the pattern at the start of `text`, which is not empty.
/// Every character belongs to a match. Throws Error(Data) for ill-formed UTF-8.
size_t scan_gpt2_piece(std::string_view text);

}  // namespace ferry
