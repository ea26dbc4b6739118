#include "app/data/token_file.h"

#include "app/data/fingerprint.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ferry {

TokenFile::TokenFile(MappedFile data, int64_t first_byte, TokenType type,
                     std::vector<int32_t> lengths, std::vector<int64_t> documents)
    : data_(std::move(data)),
      first_byte_(first_byte),
      type_(type),
      lengths_(std::move(lengths)),
      documents_(std::move(documents)) {
  CHECK(!documents_.empty() && documents_.back() == num_sequences());
  starts_.reserve(lengths_.size() + 1);
  starts_.push_back(0);
  for (const int32_t length : lengths_) starts_.push_back(starts_.back() + length);
  const auto bytes = static_cast<int64_t>(data_.bytes().size());
  CHECK(bytes >= first_byte + num_tokens() * size_of(type), name(), " has ", bytes, " bytes");
}

void TokenFile::read(int64_t sequence, int64_t offset, int64_t vocab,
                     std::span<int32_t> out) const {
  CHECK(sequence >= 0 && sequence < num_sequences(), "sequence ", sequence);
  const auto count = static_cast<int64_t>(out.size());
  CHECK(offset >= 0 && offset + count <= lengths_[sequence], "tokens ", offset, " to ",
        offset + count, " of sequence ", sequence, ", which has ", lengths_[sequence]);
  const int64_t start = first_byte_ + (starts_[sequence] + offset) * size_of(type_);
  const std::byte* source = data_.bytes().data() + start;
  dispatch_token_type(type_, [&]<class T>() {
    for (int64_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, source + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      const auto id = static_cast<int64_t>(value);
      if (id < 0 || id >= vocab) [[unlikely]]
        fail_id(sequence, offset + i, id, vocab);
      out[i] = static_cast<int32_t>(id);
    }
  });
}

void TokenFile::fail_id(int64_t sequence, int64_t position, int64_t id, int64_t vocab) const {
  const auto after = std::upper_bound(documents_.begin(), documents_.end(), sequence);
  const int64_t document = after - documents_.begin() - 1;
  const int64_t offset = starts_[sequence] - starts_[documents_[document]] + position;
  const int64_t byte = first_byte_ + (starts_[sequence] + position) * size_of(type_);
  fail(ExitCode::Data, name(), ": document ", document, ", token ", offset, " (byte ", byte,
       " of the file): token id ", id, " is outside the vocabulary of ", vocab,
       " ids. Either the tokens were made with another tokenizer (set model.vocab to its size, or "
       "run `ferry data build` with the right one), or the file is damaged");
}

int64_t TokenFile::scan(int64_t vocab, int64_t max_tokens) const {
  constexpr int64_t kChunk = 1 << 16;
  std::vector<int32_t> chunk(kChunk);
  int64_t largest = -1;
  int64_t left = std::min(max_tokens, num_tokens());
  for (int64_t sequence = 0; left > 0; ++sequence) {
    for (int64_t offset = 0; offset < lengths_[sequence] && left > 0; offset += kChunk) {
      const int64_t count = std::min({kChunk, lengths_[sequence] - offset, left});
      const std::span<int32_t> part(chunk.data(), static_cast<size_t>(count));
      read(sequence, offset, vocab, part);
      largest = std::max<int64_t>(largest, *std::max_element(part.begin(), part.end()));
      left -= count;
    }
  }
  return largest;
}

uint64_t TokenFile::fingerprint() const {
  Fingerprint print;
  print.add(name_of(type_));
  print.add(num_tokens());
  print.add(lengths());
  print.add(documents());
  return print.value();
}

}  // namespace ferry
