#include "checkpoint/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

#include "core/check.h"

namespace ferry {
namespace {

__extension__ using Wide = unsigned __int128;

uint64_t mix(uint64_t index) {
  uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

template <class Word>
Digest128 sum_words(uint64_t first, const unsigned char* data, int64_t count) {
  Wide sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + static_cast<size_t>(i) * sizeof(Word), sizeof(Word));
    sum += Wide{mix(first + static_cast<uint64_t>(i))} * word;
  }
  return {static_cast<uint64_t>(sum >> 64), static_cast<uint64_t>(sum)};
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Digest128& Digest128::operator+=(const Digest128& other) {
  const uint64_t before = low;
  low += other.low;
  high += other.high + (low < before ? 1 : 0);
  return *this;
}

std::string to_hex(const Digest128& digest) {
  return fmt::format("{:016x}{:016x}", digest.high, digest.low);
}

Digest128 digest_from_hex(const std::string& hex) {
  Digest128 digest;
  bool is_valid = hex.size() == 32;
  for (size_t i = 0; is_valid && i < 32; ++i) {
    const int value = hex_value(hex[i]);
    is_valid = value >= 0;
    uint64_t& half = i < 16 ? digest.high : digest.low;
    half = half << 4 | static_cast<uint64_t>(value & 15);
  }
  if (!is_valid) fail(ExitCode::Storage, "a digest has 32 lower-case hexadecimal digits");
  return digest;
}

Digest128 chunk_digest(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.high64, hash.low64};
}

StreamDigest::StreamDigest() : state_(XXH3_createState()) {
  CHECK(state_ != nullptr && XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_)) == XXH_OK);
}
StreamDigest::~StreamDigest() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void StreamDigest::add(const void* data, size_t bytes) {
  CHECK(XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), data, bytes) == XXH_OK);
}

Digest128 StreamDigest::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(static_cast<XXH3_state_t*>(state_));
  return {hash.high64, hash.low64};
}

Digest128 run_digest(DType dtype, int64_t first, const void* data, int64_t count) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const auto index = static_cast<uint64_t>(first);
  switch (size_of(dtype)) {
    case 1:
      return sum_words<uint8_t>(index, bytes, count);
    case 2:
      return sum_words<uint16_t>(index, bytes, count);
    case 4:
      return sum_words<uint32_t>(index, bytes, count);
    default:
      return sum_words<uint64_t>(index, bytes, count);
  }
}

Digest128 slice_digest(DType dtype, const Box& box, const void* data) {
  return slice_digest(dtype, box, data, 0, box.numel());
}

Digest128 slice_digest(DType dtype, const Box& box, const void* data, int64_t first,
                       int64_t count) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  Digest128 sum;
  for_each_run_within(box, box, whole_box(box.global), first, first + count,
                      [&](int64_t local, int64_t global, int64_t run) {
                        const auto place = static_cast<size_t>(local - first) * size_of(dtype);
                        sum += run_digest(dtype, global, bytes + place, run);
                      });
  return sum;
}

}  // namespace ferry
