#pragma once

// Loops over elements in host memory, compiled once for each VectorLevel from one source, so that
// all give the same bits. The memory is the limit: what counts is that it never waits.
//
// Only *.cpp files that hold the loop's body in an anonymous namespace may include this, after
//   #pragma GCC optimize("O3", "fp-contract=off")
// before all headers: AVX-512 brings fused multiply-adds, which would round once instead of twice.

#include <emmintrin.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/vector_level.h"

namespace ferry::cpu {

// 32 elements: two AVX-512 vectors, and one cache line of BF16.
inline constexpr int64_t kLoopBlock = 32;
// How far ahead of a stream to ask for it: 1 KiB of FP32. Twice as far measured the same, less
// slower.
inline constexpr int64_t kPrefetchElements = 256;
// Shorter loops leave their results in the cache for whoever reads them next.
inline constexpr int64_t kStreamedElements = 16384;

template <class T>
[[gnu::always_inline]] inline void prefetch_block(const T* elements) {
  for (int64_t line = 0; line < kLoopBlock; line += 64 / static_cast<int64_t>(sizeof(T)))
    __builtin_prefetch(elements + line);
}

// T(x) in a form that g++ makes full vectors of: with ?: it takes vectors of half the width.
template <class T>
[[gnu::always_inline]] inline T rounded_to(compute_t<T> x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const uint32_t word = std::bit_cast<uint32_t>(x);
    const uint32_t nan = 0u - static_cast<uint32_t>((word & 0x7fffffffu) > 0x7f800000u);
    const uint32_t nearest = word + 0x7fffu + ((word >> 16) & 1u);
    T result;
    result.bits = static_cast<uint16_t>(((nearest & ~nan) | ((word | 0x400000u) & nan)) >> 16);
    return result;
  } else {
    return x;
  }
}

// Body: `Value* value`, an output; `at(i)`, which does everything else for element i and returns
// what value[i] is rounded from; `prefetch(i)`, which asks for the block from i on of all that is
// read; both functions always_inline. `kStreams` says that value is memory that nothing else here
// uses: then whole lines of it go past the cache, as an ordinary store reads a line before it
// writes it.
template <class Body>
[[gnu::always_inline]] inline void vector_loop(const Body body, int64_t n) {
  using Value = typename Body::Value;
  Value* const value = body.value;
  int64_t i = 0;
  if (Body::kStreams && n >= kStreamedElements) {
    for (; reinterpret_cast<uintptr_t>(value + i) % 64 != 0; ++i)
      value[i] = rounded_to<Value>(body.at(i));
    for (; i + kLoopBlock <= n; i += kLoopBlock) {
      body.prefetch(i + kPrefetchElements);
      alignas(64) compute_t<Value> exact[kLoopBlock];
      alignas(64) Value line[kLoopBlock];
#pragma GCC ivdep
      for (int64_t j = 0; j < kLoopBlock; ++j) exact[j] = body.at(i + j);
      for (int64_t j = 0; j < kLoopBlock; ++j) line[j] = rounded_to<Value>(exact[j]);
      constexpr int64_t kStore = sizeof(__m128i) / sizeof(Value);
      for (int64_t j = 0; j < kLoopBlock; j += kStore)
        _mm_stream_si128(reinterpret_cast<__m128i*>(value + i + j),
                         _mm_load_si128(reinterpret_cast<const __m128i*>(line + j)));
    }
    _mm_sfence();  // before other threads or a copy engine are told that the value is there
  }
  for (; i + kLoopBlock <= n; i += kLoopBlock) {
    body.prefetch(i + kPrefetchElements);
#pragma GCC ivdep
    for (int64_t j = i; j < i + kLoopBlock; ++j) value[j] = rounded_to<Value>(body.at(j));
  }
  for (; i < n; ++i) value[i] = rounded_to<Value>(body.at(i));
}

template <class Body>
void portable_loop(const Body& body, int64_t n) {
  vector_loop(body, n);
}
template <class Body>
[[gnu::target("avx2")]] void avx2_loop(const Body& body, int64_t n) {
  vector_loop(body, n);
}
template <class Body>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void avx512_loop(
    const Body& body, int64_t n) {
  vector_loop(body, n);
}

/// The body for elements [0, n) with the vectors of `level`, which this processor must have.
template <class Body>
void run_loop(VectorLevel level, const Body& body, int64_t n) {
  switch (level) {
    case VectorLevel::Avx512:
      return avx512_loop(body, n);
    case VectorLevel::Avx2:
      return avx2_loop(body, n);
    case VectorLevel::Portable:
      return portable_loop(body, n);
  }
}

}  // namespace ferry::cpu
