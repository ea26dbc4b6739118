#include "app/data/synthetic_dataset.h"

#include "app/data/fingerprint.h"
#include "core/check.h"

namespace ferry {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

SyntheticDataset::SyntheticDataset(int64_t size, int64_t seq, int64_t vocab, uint64_t seed)
    : size_(size), seq_(seq), vocab_(vocab), seed_(seed) {
  CHECK(size > 0 && seq > 0 && vocab > 0 && vocab <= (int64_t{1} << 31));
}

void SyntheticDataset::sample(int64_t index, std::span<int32_t> out) const {
  CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
  CHECK(static_cast<int64_t>(out.size()) == seq() + 1, out.size(), " tokens");
  const uint64_t key = mix(mix(seed_) ^ static_cast<uint64_t>(index));
  for (size_t t = 0; t < out.size(); ++t) {
    const uint64_t high = mix(key ^ t) >> 32;
    out[t] = static_cast<int32_t>(high * static_cast<uint64_t>(vocab_) >> 32);
  }
}

uint64_t SyntheticDataset::fingerprint() const {
  Fingerprint print;
  print.add(std::string_view("synthetic"));
  print.add(seq_);
  print.add(vocab_);
  print.add(seed_);
  return print.value();
}

std::string SyntheticDataset::describe() const {
  return concat("synthetic: random tokens below ", vocab_, ", samples of ", seq_, " tokens, seed ",
                seed_);
}

}  // namespace ferry
