#pragma once

// Samples of one token file: a split of its sequences, shuffled and cut as SampleOrder says.

#include "app/data/sample_order.h"
#include "app/data/token_dataset.h"
#include "app/data/token_file.h"

#include <cstdint>
#include <span>
#include <string>

namespace ferry {

class GptDataset : public TokenDataset {
 public:
  struct Options {
    SequenceRange range;
    int64_t seq = 0;
    int64_t num_samples = 0;  // <= 0: one epoch
    int64_t vocab = 0;
    uint64_t seed = 0;
  };

  /// Throws Error(Data) when the range cannot fill one sample.
  GptDataset(TokenFile file, const Options& options);

  int64_t size() const override { return order_.size(); }
  int64_t seq() const override { return options_.seq; }
  void sample(int64_t index, std::span<int32_t> out) const override;
  uint64_t fingerprint() const override;
  std::string describe() const override;

 private:
  TokenFile file_;
  Options options_;
  SampleOrder order_;
};

}  // namespace ferry
