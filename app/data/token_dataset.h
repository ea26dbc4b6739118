#pragma once

// The samples of a run, in order, and where they come from.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ferry {

/// Sample i is the same tokens on every rank and in every run with the same fingerprint. Reading
/// from many threads is safe.
class TokenDataset {
 public:
  virtual ~TokenDataset() = default;
  /// Number of samples.
  virtual int64_t size() const = 0;
  /// Tokens that a model sees of each sample; a sample has one more, the label of the last.
  virtual int64_t seq() const = 0;
  /// Fills `out`, which has seq() + 1 elements, with ids inside the vocabulary. Throws Error(Data)
  /// that names the file, document, offset and id when the file holds another one.
  virtual void sample(int64_t index, std::span<int32_t> out) const = 0;
  /// Digest of the files' structure and of the order. Kept in checkpoints: a resumed run with
  /// another fingerprint would see other samples.
  virtual uint64_t fingerprint() const = 0;
  /// One line for the log.
  virtual std::string describe() const = 0;
};

/// What to open. The fields are the keys of [data], and what a run knows besides.
struct DataSpec {
  std::string kind = "megatron";   // megatron | llmc | raw | synthetic
  std::vector<std::string> paths;  // paths, or weight, path, weight, path, ...
  std::string split;               // "969,30,1"; empty: every file is used whole
  int split_index = 0;             // 0 train, 1 valid, 2 test
  int64_t seq = 0;
  int64_t num_samples = 0;  // samples the run needs; <= 0: one epoch
  int64_t vocab = 0;        // ids must lie in [0, vocab)
  uint64_t seed = 1234;
  int64_t eod = -1;  // ends (raw) or starts (llmc) a document; -1: a file is one document
};

/// Opens and verifies the files, looks at the ids of the first 64 Mi tokens of each, and builds the
/// order. Throws Error(Data) for missing, damaged or too small files, Error(Usage) for a bad spec.
std::unique_ptr<TokenDataset> open_dataset(const DataSpec& spec);

}  // namespace ferry
