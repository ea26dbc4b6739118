#include "app/data/entropy.h"

#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace ferry {
namespace {

// Of counts that sum to `total`: -sum p ln p = ln total - (sum c ln c) / total.
double entropy_of(double sum_of_c_ln_c, int64_t total) {
  if (total == 0) return 0;
  const auto n = static_cast<double>(total);
  return std::log(n) - sum_of_c_ln_c / n;
}

double c_ln_c(int64_t count) {
  return count == 0 ? 0 : static_cast<double>(count) * std::log(static_cast<double>(count));
}

double sum_c_ln_c(const std::vector<int64_t>& counts) {
  double sum = 0;
  for (const int64_t count : counts) sum += c_ln_c(count);
  return sum;
}

}  // namespace

Entropy token_entropy(const TokenFile& file) {
  const auto vocab = static_cast<size_t>(file.scan(kAnyVocab, file.num_tokens()) + 1);
  std::vector<int64_t> counts(vocab, 0), first_counts(vocab, 0);
  std::unordered_map<uint64_t, int64_t> pair_counts;
  int64_t num_pairs = 0;
  std::vector<int32_t> tokens;
  for (int64_t document = 0; document < file.num_documents(); ++document) {
    int64_t previous = -1;
    const int64_t end = file.documents()[document + 1];
    for (int64_t sequence = file.documents()[document]; sequence < end; ++sequence) {
      tokens.resize(static_cast<size_t>(file.lengths()[sequence]));
      file.read(sequence, 0, kAnyVocab, tokens);
      for (const int32_t token : tokens) {
        ++counts[token];
        if (previous >= 0) {
          ++first_counts[previous];
          ++pair_counts[static_cast<uint64_t>(previous) << 32 | static_cast<uint64_t>(token)];
          ++num_pairs;
        }
        previous = token;
      }
    }
  }
  double pair_sum = 0;
  for (const auto& [pair, count] : pair_counts) pair_sum += c_ln_c(count);
  // H(x2 | x1) = H(x1, x2) - H(x1)
  return {
      .unigram = entropy_of(sum_c_ln_c(counts), file.num_tokens()),
      .bigram = entropy_of(pair_sum, num_pairs) - entropy_of(sum_c_ln_c(first_counts), num_pairs)};
}

}  // namespace ferry
