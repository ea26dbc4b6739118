#pragma once

// Two digests with two purposes.
//
// A chunk digest (XXH3-128 of 4 MiB of a slice, taken from the caller's memory) protects the bytes
// of a file. A tensor digest protects the meaning: it is the sum over all elements i of
//     mix(i) * bits(i)  mod 2^128,
// with i the row-major index in the global tensor, bits(i) the element as an unsigned integer and
// mix the finalizer of splitmix64. A sum does not care who adds which part, so every rank digests
// its own slice and any layout of ranks gives the same result; as the keys mix(i) look random, two
// different tensors collide with a chance of about 2^-64 (multilinear hashing).

#include <cstdint>
#include <string>

#include "checkpoint/slice.h"
#include "core/dtype.h"

namespace ferry {

struct Digest128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Digest128&) const = default;

  /// Addition mod 2^128, for tensor digests.
  Digest128& operator+=(const Digest128& other);
};

/// 32 lower-case hexadecimal digits, most significant first.
std::string to_hex(const Digest128& digest);
/// Throws Error(Storage) unless `hex` is exactly what to_hex writes.
Digest128 digest_from_hex(const std::string& hex);

/// XXH3-128 with seed 0, as `xxh128sum` prints it.
Digest128 chunk_digest(const void* data, size_t bytes);

/// XXH3-128 of bytes that arrive in pieces.
class StreamDigest {
 public:
  StreamDigest();
  ~StreamDigest();
  StreamDigest(const StreamDigest&) = delete;
  StreamDigest& operator=(const StreamDigest&) = delete;
  void add(const void* data, size_t bytes);
  Digest128 value() const;

 private:
  void* state_;
};

/// The part of a tensor digest of `count` elements that begin at global index `first`.
Digest128 run_digest(DType dtype, int64_t first, const void* data, int64_t count);

/// The part of a tensor digest of a whole slice, row-major at `data`.
Digest128 slice_digest(DType dtype, const Box& box, const void* data);
/// The same of `count` elements of the slice alone, from its row-major index `first` on: these are
/// at `data`.
Digest128 slice_digest(DType dtype, const Box& box, const void* data, int64_t first, int64_t count);

}  // namespace ferry
