#pragma once

// Byte-level byte-pair encoding as GPT-2 uses it: the text is cut into pieces, a piece starts as
// its bytes, and adjacent tokens are merged, best merge first (Sennrich et al., Radford et al.).

#include "app/data/bpe_files.h"
#include "app/data/tokenizer.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ferry {

class BpeTokenizer : public Tokenizer {
 public:
  /// Throws Error(Data) for a vocabulary without one of the 256 bytes, ids that are negative or
  /// used twice, and merges whose parts or result are not in the vocabulary.
  explicit BpeTokenizer(const BpeModel& model);

  /// `text` must be valid UTF-8, else Error(Data) is thrown.
  void encode(std::string_view text, std::vector<int32_t>& ids) override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_of_.size()); }
  int32_t eod() const override { return eod_; }
  std::string name() const override { return file_; }

 private:
  struct Merge {
    int32_t rank, result;
  };

  void load_vocab(const BpeModel& model);
  void load_merges(const BpeModel& model);
  void encode_plain(std::string_view text, std::vector<int32_t>& ids);
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids);
  void merge_piece(std::string_view piece, std::vector<int32_t>& ids) const;
  const Merge* find_merge(int32_t left, int32_t right) const;

  std::string file_;
  bool nfc_, add_prefix_space_, ignore_merges_;
  int32_t eod_ = -1;
  std::array<int32_t, 256> byte_id_{};
  std::vector<std::string> bytes_of_;               // by id; empty where the vocabulary has a hole
  std::vector<char> is_known_;                      // by id
  std::unordered_map<std::string, int32_t> id_of_;  // for ignore_merges only
  std::unordered_map<uint64_t, Merge> merges_;      // by left << 32 | right
  std::vector<AddedToken> raw_added_, normalized_added_;  // longest first
  std::unordered_map<std::string, std::vector<int32_t>> cache_;
};

}  // namespace ferry
