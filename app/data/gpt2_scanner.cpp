#include "app/data/gpt2_scanner.h"

#include "app/data/utf8.h"

namespace ferry {
namespace {

// Size of the longest run of `wanted` from `begin` on.
size_t run_of(CharacterClass wanted, std::string_view text, size_t begin) {
  size_t end = begin;
  while (end < text.size()) {
    const Character character = first_character(text.substr(end));
    if (class_of(character.code_point) != wanted) break;
    end += character.size;
  }
  return end - begin;
}

// A run of blanks leaves its last one to the word that follows, if one does.
size_t scan_blanks(std::string_view text) {
  size_t end = 0, last = 0;
  while (end < text.size()) {
    const Character character = first_character(text.substr(end));
    if (class_of(character.code_point) != CharacterClass::Space) break;
    last = end;
    end += character.size;
  }
  return end == text.size() || last == 0 ? end : last;
}

}  // namespace

size_t scan_gpt2_piece(std::string_view text) {
  for (const std::string_view contraction : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(contraction)) return contraction.size();
  }
  const size_t blank = text.front() == ' ' && text.size() > 1 ? 1 : 0;
  const CharacterClass first = class_of(first_character(text.substr(blank)).code_point);
  if (first == CharacterClass::Space) return scan_blanks(text);
  return blank + run_of(first, text, blank);
}

}  // namespace ferry
