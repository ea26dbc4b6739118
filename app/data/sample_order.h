#pragma once

// Which tokens form which training sample: Megatron-LM's GPT data set order, bit for bit. A pure
// function of the sequence lengths, the split, the seed, the sample length and the number of
// samples; linear in the number of tokens divided by the sample length, and of sequences.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ferry {

/// Sequences [begin, end) of a file.
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const SequenceRange&) const = default;
};

/// The ranges of train, valid and test. `split` is up to three weights such as "969,30,1"; bounds
/// round half to even. Throws Error(Usage) when there are no weights, too many, or all are zero.
std::array<SequenceRange, 3> split_sequences(const std::string& split, int64_t num_sequences);

/// Where a sample starts: a position in SampleOrder::documents and a token in that sequence.
struct SamplePosition {
  int64_t position = 0;
  int64_t offset = 0;
  bool operator==(const SamplePosition&) const = default;
};

struct SampleOrder {
  int64_t num_epochs = 1;
  /// Samples that end in the epochs before the last, when the last one is shuffled by itself
  /// because the run uses less than 80 % of it; else -1.
  int64_t separate_from = -1;
  std::vector<int32_t> documents;         // sequence numbers, epoch after epoch, shuffled
  std::vector<SamplePosition> positions;  // start of each sample and, last, the end of all
  std::vector<int64_t> shuffle;           // sample i of the run is sample shuffle[i] of positions

  int64_t size() const { return static_cast<int64_t>(shuffle.size()); }
};

/// `lengths` are of the whole file. Makes as many epochs over `range` as `num_samples` samples of
/// seq + 1 tokens need (neighbours share one token); num_samples <= 0 means one epoch. The order
/// holds every sample of those epochs, so size() >= num_samples. The range must contain tokens, and
/// seed must be below 2^32.
SampleOrder make_sample_order(std::span<const int32_t> lengths, SequenceRange range, int64_t seq,
                              int64_t num_samples, uint64_t seed);

}  // namespace ferry
