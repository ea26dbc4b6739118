#pragma once

// Random tokens without a file, for measurements and tests: `data.kind = "synthetic"`.

#include "app/data/token_dataset.h"

#include <cstdint>
#include <span>
#include <string>

namespace ferry {

/// Token t of sample i is a hash of (seed, i, t), uniform in [0, vocab). The best possible loss is
/// ln(vocab).
class SyntheticDataset : public TokenDataset {
 public:
  SyntheticDataset(int64_t size, int64_t seq, int64_t vocab, uint64_t seed);

  int64_t size() const override { return size_; }
  int64_t seq() const override { return seq_; }
  void sample(int64_t index, std::span<int32_t> out) const override;
  uint64_t fingerprint() const override;
  std::string describe() const override;

 private:
  int64_t size_, seq_, vocab_;
  uint64_t seed_;
};

}  // namespace ferry
