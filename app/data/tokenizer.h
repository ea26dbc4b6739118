#pragma once

// Text to token ids and back.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ferry {

/// For one thread at a time: implementations may keep a cache.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Appends the ids of `text` to `ids`. Adds no end-of-document id.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) = 0;
  /// The bytes of `ids`; not always valid UTF-8, since a character may be cut. Throws Error(Data)
  /// for an id that is not in the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Ids are in [0, vocab_size()).
  virtual int64_t vocab_size() const = 0;
  /// The id that ends a document; -1 if there is none.
  virtual int32_t eod() const = 0;
  /// For logs: "byte" or the file.
  virtual std::string name() const = 0;
};

/// `name` is "byte", a tokenizer.json, a vocabulary (encoder.json or vocab.json, with vocab.bpe or
/// merges.txt beside it), or a folder with one of these. Throws Error(Data) for files that are
/// missing, damaged or of a kind that is not supported.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

}  // namespace ferry
