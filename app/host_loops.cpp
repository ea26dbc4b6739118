// See core/ops/vector_loop_cpu.h.
#pragma GCC optimize("O3", "fp-contract=off")

#include "app/host_loops.h"

#include <atomic>

#include "core/ops/vector_loop_cpu.h"

namespace ferry {
namespace {

struct CopyBody {
  using Value = float;
  static constexpr bool kStreams = true;
  float* value;
  const float* from;

  [[gnu::always_inline]] float at(int64_t i) const { return from[i]; }
  [[gnu::always_inline]] void prefetch(int64_t i) const { cpu::prefetch_block(from + i); }
};

struct TriadBody {
  using Value = float;
  static constexpr bool kStreams = true;
  float* value;
  const float* a;
  const float* b;
  float factor;

  [[gnu::always_inline]] float at(int64_t i) const { return a[i] + factor * b[i]; }
  [[gnu::always_inline]] void prefetch(int64_t i) const {
    cpu::prefetch_block(a + i);
    cpu::prefetch_block(b + i);
  }
};

// `zero` is 0, which the compiler does not know: each array is read and written, and keeps its
// numbers however often the loop runs.
template <bool streams, bool with_squares>
struct UpdateBody {
  using Value = BFloat16;
  static constexpr bool kStreams = streams;
  BFloat16* value;
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const float* grad;
  float zero;

  [[gnu::always_inline]] float at(int64_t i) const {
    const float change = zero * grad[i];
    exp_avg[i] = exp_avg[i] + change;
    if (with_squares) exp_avg_sq[i] = exp_avg_sq[i] + change;
    const float w = master[i] + change;
    master[i] = w;
    return w;
  }
  [[gnu::always_inline]] void prefetch(int64_t i) const {
    cpu::prefetch_block(grad + i);
    cpu::prefetch_block(exp_avg + i);
    if (with_squares) cpu::prefetch_block(exp_avg_sq + i);
    cpu::prefetch_block(master + i);
  }
};

template <bool streams, bool with_squares>
void run_pattern(const UpdateArrays& arrays) {
  static volatile float zero = 0;
  cpu::run_loop(
      vector_level(),
      UpdateBody<streams, with_squares>{
          arrays.value.data<BFloat16>(), arrays.master.data<float>(), arrays.exp_avg.data<float>(),
          arrays.exp_avg_sq.data<float>(), arrays.grad.data<float>(), zero},
      arrays.size());
}

void read(const UpdateArrays& arrays) {
  const float *a = arrays.master.data<float>(), *b = arrays.exp_avg.data<float>();
  const float *c = arrays.exp_avg_sq.data<float>(), *d = arrays.grad.data<float>();
  float sums[cpu::kLoopBlock] = {};
  for (int64_t i = 0; i + cpu::kLoopBlock <= arrays.size(); i += cpu::kLoopBlock) {
    for (const float* array : {a, b, c, d}) cpu::prefetch_block(array + i + cpu::kPrefetchElements);
    for (int64_t j = 0; j < cpu::kLoopBlock; ++j)
      sums[j] += (a[i + j] + b[i + j]) + (c[i + j] + d[i + j]);
  }
  // Somewhere to put them: what nobody uses is not computed.
  static std::atomic<float> sink;
  for (const float sum : sums) sink.store(sum, std::memory_order_relaxed);
}

}  // namespace

UpdateArrays UpdateArrays::allocate(Device& device, int64_t elements) {
  const auto array = [&](DType dtype) {
    return Tensor::host(device, "bench adam", {elements}, dtype);
  };
  return {array(DType::BF16), array(DType::F32), array(DType::F32), array(DType::F32),
          array(DType::F32)};
}

UpdateArrays UpdateArrays::part(int64_t begin, int64_t end) const {
  return {value.rows(begin, end), master.rows(begin, end), exp_avg.rows(begin, end),
          exp_avg_sq.rows(begin, end), grad.rows(begin, end)};
}

void UpdateArrays::fill(int64_t first) const {
  auto* values = value.data<BFloat16>();
  auto* masters = master.data<float>();
  auto* means = exp_avg.data<float>();
  auto* squares = exp_avg_sq.data<float>();
  auto* gradients = grad.data<float>();
  for (int64_t i = 0; i < size(); ++i) {
    // Four numbers of 16 bits from one 64-bit mix (the finaliser of SplitMix64, G. Steele et al.).
    uint64_t mixed = (static_cast<uint64_t>(first + i) + 1) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
    const auto number = [&](int k) {
      return static_cast<float>(static_cast<int16_t>(mixed >> (16 * k))) + 0.5f;
    };
    masters[i] = number(0) * 0x1p-20f;
    means[i] = number(1) * 0x1p-25f;
    squares[i] = number(2) * number(2) * 0x1p-50f;
    gradients[i] = number(3) * 0x1p-25f;
    values[i] = BFloat16(masters[i]);
  }
}

const char* name_of(HostLoop loop) {
  switch (loop) {
    case HostLoop::Read:
      return "read";
    case HostLoop::Copy:
      return "copy";
    case HostLoop::Triad:
      return "triad";
    case HostLoop::AdamwPattern:
      return "adamw pattern";
    case HostLoop::AdamwOrdinary:
      return "adamw pattern, no streaming";
    case HostLoop::SgdPattern:
      return "sgd pattern";
  }
  return "?";
}

int64_t bytes_per_element(HostLoop loop) {
  switch (loop) {
    case HostLoop::Read:
      return 16;
    case HostLoop::Copy:
      return 8;
    case HostLoop::Triad:
      return 12;
    case HostLoop::AdamwPattern:
    case HostLoop::AdamwOrdinary:
      return 30;
    case HostLoop::SgdPattern:
      return 22;
  }
  return 0;
}

void run_host_loop(HostLoop loop, const UpdateArrays& arrays) {
  switch (loop) {
    case HostLoop::Read:
      return read(arrays);
    case HostLoop::Copy:
      return cpu::run_loop(vector_level(),
                           CopyBody{arrays.grad.data<float>(), arrays.exp_avg.data<float>()},
                           arrays.size());
    case HostLoop::Triad:
      return cpu::run_loop(vector_level(),
                           TriadBody{arrays.grad.data<float>(), arrays.exp_avg.data<float>(),
                                     arrays.exp_avg_sq.data<float>(), 3.0f},
                           arrays.size());
    case HostLoop::AdamwPattern:
      return run_pattern<true, true>(arrays);
    case HostLoop::AdamwOrdinary:
      return run_pattern<false, true>(arrays);
    case HostLoop::SgdPattern:
      return run_pattern<true, false>(arrays);
  }
}

}  // namespace ferry
