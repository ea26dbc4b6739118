#pragma once

// The `PREFIX.bin` / `PREFIX.idx` pair of Megatron-LM: tokens back to back in .bin, and in .idx
// (little-endian, no padding, arrays not aligned)
//   0   9 bytes  "MMIDIDX\0\0"            18       u64 S   sequences
//   9   u64      version = 1              26       u64 D   documents + 1
//   17  u8       TokenType                34       i32[S]  length of each sequence in tokens
//   34+4S   i64[S]  byte offset of each sequence in .bin
//   34+12S  i64[D]  document bounds as sequence numbers: first 0, never decreasing, last S

#include "app/data/output_file.h"
#include "app/data/token_file.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ferry {

/// `PREFIX`, `PREFIX.bin` and `PREFIX.idx` all name the pair; this is the first form.
std::string dataset_prefix(const std::string& path);

/// Opens and verifies a pair: every rule above, every offset, and the size of both files. Throws
/// Error(Data) that names the file and the first rule that it breaks. Token ids are not looked at.
TokenFile open_indexed_dataset(const std::string& path);

/// Writes a pair. The files appear under their names in `finish`, .bin before .idx, so that a
/// readable .idx always belongs to a complete .bin. One thread at a time.
class IndexedWriter {
 public:
  /// Refuses a prefix that exists already, unless `overwrite`. Throws Error(Usage) then, and
  /// Error(Storage) when the files cannot be written.
  IndexedWriter(const std::string& prefix, TokenType type, bool overwrite);

  /// Adds one sequence to the current document.
  void add_sequence(std::span<const int32_t> ids);
  /// A document without a sequence is legal: it is empty.
  void end_document();
  /// Call once, after the last end_document.
  void finish();

  int64_t num_documents() const { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  std::string prefix_;
  TokenType type_;
  OutputFile bin_, idx_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_{0};
  int64_t num_tokens_ = 0;
};

}  // namespace ferry
