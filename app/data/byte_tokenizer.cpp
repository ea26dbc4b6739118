#include "app/data/byte_tokenizer.h"

#include "core/check.h"

namespace ferry {

void ByteTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) {
  ids.reserve(ids.size() + text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id > kEod) {
      fail(ExitCode::Data, "token id ", id, " is not in the byte vocabulary of 257 ids");
    }
    if (id != kEod) text.push_back(static_cast<char>(id));
  }
  return text;
}

}  // namespace ferry
