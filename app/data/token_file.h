#pragma once

// Token ids in a file, cut into sequences, whatever the format of the file. The formats are opened
// by open_indexed_dataset (Megatron), open_llmc_shard and open_raw_tokens.

#include "app/data/mapped_file.h"
#include "app/data/token_type.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ferry {

/// For readers that accept every id an int32 can hold.
inline constexpr int64_t kAnyVocab = int64_t{1} << 31;

/// Immutable after construction; reading from many threads is safe. A document is one or more
/// consecutive sequences (one, in files of plain text), or none if it is empty.
class TokenFile {
 public:
  /// `data` holds the tokens of all sequences back to back from byte `first_byte` on.
  /// `documents` has one more entry than there are documents: their bounds, as sequence numbers.
  TokenFile(MappedFile data, int64_t first_byte, TokenType type, std::vector<int32_t> lengths,
            std::vector<int64_t> documents);

  /// Tokens in each sequence.
  std::span<const int32_t> lengths() const { return lengths_; }
  std::span<const int64_t> documents() const { return documents_; }
  int64_t num_sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_documents() const { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t num_tokens() const { return starts_.back(); }
  TokenType type() const { return type_; }
  /// The file that holds the tokens.
  std::string name() const { return data_.path().string(); }

  /// Copies out.size() tokens from `offset` on in a sequence. An id outside [0, vocab) throws
  /// Error(Data) with the file, document, offset, id and vocabulary.
  void read(int64_t sequence, int64_t offset, int64_t vocab, std::span<int32_t> out) const;

  /// Reads up to `max_tokens` from the start and returns the largest id (-1 without tokens). Throws
  /// as `read` does.
  int64_t scan(int64_t vocab, int64_t max_tokens) const;

  /// Digest of type, number of tokens, lengths and document bounds; not of the tokens themselves.
  uint64_t fingerprint() const;

 private:
  [[noreturn]] void fail_id(int64_t sequence, int64_t position, int64_t id, int64_t vocab) const;

  MappedFile data_;
  int64_t first_byte_;
  TokenType type_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_;
  std::vector<int64_t> starts_;  // running sum of lengths_, one entry more
};

}  // namespace ferry
