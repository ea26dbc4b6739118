#pragma once

// A 64-bit digest that tells data sets and sample orders apart. It is stored in checkpoints: the
// function must not change. Not for security.

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

namespace ferry {

/// FNV-1a taken over 64-bit words, with a shift that carries high bits back to low ones.
class Fingerprint {
 public:
  void add(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3ull;
    value_ ^= value_ >> 32;
  }
  void add(int64_t word) { add(static_cast<uint64_t>(word)); }
  void add(int32_t word) { add(static_cast<int64_t>(word)); }
  void add(double number) { add(std::bit_cast<uint64_t>(number)); }
  void add(std::string_view text) {
    for (const char c : text) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
    add(static_cast<uint64_t>(text.size()));
  }
  template <class Integer>
  void add(std::span<const Integer> integers) {
    for (const Integer integer : integers) add(integer);
    add(static_cast<uint64_t>(integers.size()));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325ull;
};

}  // namespace ferry
