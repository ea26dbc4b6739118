#pragma once

// Every byte is a token: no files, no unknown text, a vocabulary of 257.

#include "app/data/tokenizer.h"

namespace ferry {

/// Ids 0 to 255 are the bytes; 256 ends a document and decodes to nothing.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kEod = 256;

  void encode(std::string_view text, std::vector<int32_t>& ids) override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return 257; }
  int32_t eod() const override { return kEod; }
  std::string name() const override { return "byte"; }
};

}  // namespace ferry
