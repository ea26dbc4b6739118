#include "app/data/sample_order.h"

#include "app/data/numpy_shuffle.h"
#include "core/check.h"

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>

namespace ferry {
namespace {

// All runs of digits and dots in `split`, as numbers.
std::vector<double> parse_weights(const std::string& split) {
  constexpr const char* kDigits = ".0123456789";
  std::vector<double> weights;
  size_t end = 0;
  for (size_t begin = 0; (begin = split.find_first_of(kDigits, end)) != std::string::npos;) {
    end = std::min(split.find_first_not_of(kDigits, begin), split.size());
    const std::string word = split.substr(begin, end - begin);
    char* rest = nullptr;
    weights.push_back(std::strtod(word.c_str(), &rest));
    if (*rest != '\0')
      fail(ExitCode::Usage, "data.split = \"", split, "\": '", word, "' is not a number");
  }
  return weights;
}

// The sequence numbers of `range`, `num_epochs` times, shuffled together.
void append_shuffled_epochs(std::mt19937& rng, SequenceRange range, int64_t num_epochs,
                            std::vector<int32_t>& documents) {
  const size_t begin = documents.size();
  for (int64_t epoch = 0; epoch < num_epochs; ++epoch) {
    for (int64_t i = range.begin; i < range.end; ++i) documents.push_back(static_cast<int32_t>(i));
  }
  numpy_shuffle(rng, std::span(documents).subspan(begin));
}

std::vector<SamplePosition> make_positions(std::span<const int32_t> lengths,
                                           std::span<const int32_t> documents, int64_t seq,
                                           int64_t num_samples) {
  std::vector<SamplePosition> positions;
  positions.reserve(static_cast<size_t>(num_samples) + 1);
  SamplePosition at;
  positions.push_back(at);
  for (int64_t sample = 0; sample < num_samples; ++sample) {
    int64_t needed = seq + 1;
    while (true) {
      const int64_t available = lengths[documents[at.position]] - at.offset;
      if (needed <= available) break;
      needed -= available;
      at.position += 1;
      at.offset = 0;
    }
    at.offset += needed - 1;  // the last token is also the first of the next sample
    positions.push_back(at);
  }
  return positions;
}

}  // namespace

std::array<SequenceRange, 3> split_sequences(const std::string& split, int64_t num_sequences) {
  std::vector<double> weights = parse_weights(split);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (weights.size() > 3 || !(sum > 0)) {
    fail(ExitCode::Usage, "data.split = \"", split,
         "\" must be one to three weights for train, valid "
         "and test that are not all zero, such as \"969,30,1\"");
  }
  weights.resize(3, 0.0);
  std::array<SequenceRange, 3> ranges;
  double bound = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const double next = bound + weights[i] / sum;
    // nearbyint rounds half to even in the default rounding mode.
    ranges[i].begin =
        static_cast<int64_t>(std::nearbyint(bound * static_cast<double>(num_sequences)));
    ranges[i].end = static_cast<int64_t>(std::nearbyint(next * static_cast<double>(num_sequences)));
    bound = next;
  }
  return ranges;
}

SampleOrder make_sample_order(std::span<const int32_t> lengths, SequenceRange range, int64_t seq,
                              int64_t num_samples, uint64_t seed) {
  CHECK(seq > 0 && range.begin >= 0 && range.end <= static_cast<int64_t>(lengths.size()));
  if (seed > 0xffffffffull) {
    fail(ExitCode::Usage, "the data seed ", seed, " must be below 2^32 (run.seed)");
  }
  int64_t tokens = 0;
  for (int64_t i = range.begin; i < range.end; ++i) tokens += lengths[i];
  CHECK(tokens > 0, "the range has no tokens");

  SampleOrder order;
  std::mt19937 rng(static_cast<uint32_t>(seed));
  if (num_samples > 0) order.num_epochs = (num_samples * seq + 1 + tokens - 1) / tokens;
  const int64_t epochs = order.num_epochs;
  if (epochs > 1) {
    const int64_t before_last = ((epochs - 1) * tokens - 1) / seq;
    const int64_t per_epoch = (tokens - 1) / seq;
    const auto threshold = static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
    if (num_samples - before_last < threshold) order.separate_from = before_last;
  }
  const bool separate = order.separate_from >= 0;

  order.documents.reserve(static_cast<size_t>(epochs * (range.end - range.begin)));
  append_shuffled_epochs(rng, range, separate ? epochs - 1 : epochs, order.documents);
  if (separate) append_shuffled_epochs(rng, range, 1, order.documents);

  const int64_t total = (epochs * tokens - 1) / seq;
  order.positions = make_positions(lengths, order.documents, seq, total);

  order.shuffle.resize(static_cast<size_t>(total));
  std::iota(order.shuffle.begin(), order.shuffle.end(), 0);
  const std::span<int64_t> all(order.shuffle);
  const auto first = static_cast<size_t>(separate ? order.separate_from : total);
  numpy_shuffle(rng, all.first(first));
  if (separate) numpy_shuffle(rng, all.subspan(first));
  return order;
}

}  // namespace ferry
