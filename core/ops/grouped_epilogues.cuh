#pragma once

// What becomes of a finished tile of a grouped product (grouped_gemm_wgmma.cuh). An SM stores a
// tile more slowly than it could multiply meanwhile, so a warpgroup keeps 64 words a thread of the
// tile before, and its epilogue stores them in kSteps steps, one behind each of the next tile's
// first products. A step must be shorter than the products of one block of depth, about 1,000
// cycles, or the tensor cores wait for it.

#include "core/ops/grouped_units.cuh"
#include "core/ops/hopper.cuh"
#include "core/ops/mma.cuh"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/swiglu_cuda.cuh"
#include "core/ops/vector_cuda.cuh"

namespace ferry::cuda::wgmma {

/// Where a warp's 16 rows of a tile are in c, as coordinates of its map; row kRowsEnd: nowhere.
struct Destination {
  int column = 0;
  int row = kRowsEnd;
  int matrix = 0;  // of wgrad; else the end of the group

  __device__ bool exists() const { return row < kRowsEnd; }
  /// Of all rows: this warp's row `i`. Is beyond the group if not less than `matrix`.
  __device__ int global_row(int i) const { return matrix + (row - kRowsEnd) + i; }
};

/// What all epilogues have: two boxes in shared memory of each warp, in which 16-byte chunks of a
/// row are permuted as copies expect them.
struct WarpBoxes {
  const Maps& maps;
  const Product& p;
  uint32_t lane;
  uint32_t boxes;    // two of this warp
  uint32_t arrived;  // this warp's barrier for what it loads

  __device__ __forceinline__ uint32_t box(int i) const { return boxes + i % 2 * kBytesBox; }
  /// One of the two that this warp may write.
  __device__ __forceinline__ uint32_t free_box(int i) const {
    if (lane == 0) hopper::wait_for_reads_of_boxes<1>();
    __syncwarp();
    return box(i);
  }
  /// This lane's address for the matrices of columns [16 slice, 16 slice + 16) of a box of BF16.
  __device__ __forceinline__ uint32_t matrices(uint32_t box, int slice) const {
    const uint32_t row = lane % 16, chunk = 2 * static_cast<uint32_t>(slice) + lane / 16;
    return box + row * 128 + (chunk ^ (row % 8)) * 16;
  }
  /// A slice of a box: pair(i) are this thread's i-th of 4 words.
  template <class Pair>
  __device__ __forceinline__ void fill_slice(uint32_t box, int slice, Pair&& pair) const {
    const uint32_t words[4] = {pair(0), pair(1), pair(2), pair(3)};
    hopper::store_matrices(matrices(box, slice), words);
  }
  /// Words [16 part, 16 part + 16) to 64 columns of c.
  __device__ __forceinline__ void store_part(int part, int column, const Destination& to,
                                             const uint32_t (&words)[64]) const {
    const uint32_t box = free_box(part);
#pragma unroll
    for (int slice = 0; slice < 4; ++slice)
      fill_slice(box, slice, [&](int i) { return words[part * 16 + slice * 4 + i]; });
    store(maps.c, box, column, to);
  }
  /// The factors of this thread's upper and lower row.
  __device__ __forceinline__ void load_factors(float (&factor)[2], const Destination& to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = to.global_row(static_cast<int>(lane / 4) + half * 8);
      factor[half] = p.prob != nullptr && to.exists() && row < to.matrix ? p.prob[row] : 1.0f;
    }
  }
  __device__ __forceinline__ void store(const CUtensorMap& map, uint32_t box, int column,
                                        const Destination& to) const {
    hopper::publish_to_copies();
    __syncwarp();
    if (lane != 0) return;
    if (to.exists()) hopper::store_box(map, box, column, to.row, to.matrix, kRowsEnd);
    hopper::commit_boxes();
  }
};

/// c = sums, rounded to BF16. Words are pairs of neighbouring columns: 2 q of this thread's upper
/// row, 2 q + 1 of its lower row, q of 32 groups of 8 columns.
struct StoreRows : WarpBoxes {
  static constexpr int kSteps = 4;

  __device__ __forceinline__ void step(int step, const Destination& to,
                                       const uint32_t (&words)[64]) {
    store_part(step, to.column + step * 64, to, words);
  }
};

/// c += sums, FP32: words are the right half of a tile, the left half is added at once (`add`).
struct AddMatrices : WarpBoxes {
  static constexpr int kParts = 4;
  // Every second one does something: more often, stores are in the way of loads.
  static constexpr int kSteps = 2 * kParts;

  /// Columns [32 part, 32 part + 32) of the tile; value(i) are this thread's of its half.
  template <class Value>
  __device__ __forceinline__ void add(int part, const Destination& to, Value&& value) const {
    const uint32_t box = free_box(part);
    const uint32_t row = lane / 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const int first = part % kParts * 16 + static_cast<int>(i) * 4;
      const uint32_t chunk = (2 * i + lane % 4 / 2) ^ row;
      const uint32_t address = box + row * 128 + chunk * 16 + lane % 2 * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value(first)),
                   "f"(value(first + 1))
                   : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address + 1024), "f"(value(first + 2)),
                   "f"(value(first + 3))
                   : "memory");
    }
    hopper::publish_to_copies();
    __syncwarp();
    if (lane != 0) return;
    if (to.exists()) hopper::add_box(maps.c, box, to.column + part * 32, to.row, to.matrix);
    hopper::commit_boxes();
  }

  __device__ __forceinline__ void step(int step, const Destination& to,
                                       const uint32_t (&words)[64]) {
    if (step % 2 == 0) add(kParts + step / 2, to, [&](int i) { return __uint_as_float(words[i]); });
  }
};

/// A tile is 128 columns of gate and the same of up: c = both, d = silu(gate) * up * prob. Words
/// are those of StoreRows, gate first.
struct StoreSwiglu : WarpBoxes {
  static constexpr int kSteps = 4 + 2 * 4;  // two boxes of gate, two of up; four for each of h

  float factor[2] = {1, 1};

  __device__ __forceinline__ void step(int step, const Destination& to,
                                       const uint32_t (&words)[64]) {
    if (step == 0) load_factors(factor, to);
    if (step < 4) {
      store_part(step, to.column + step % 2 * 64 + step / 2 * p.ffn, to, words);
      return;
    }
    const int part = (step - 4) / 4, slice = step % 4;
    if (slice == 0) free_box(part);
    fill_slice(box(part), slice, [&](int i) {
      const int word = part * 16 + slice * 4 + i;
      float gate[2], up[2];
      unpack(words[word], gate[0], gate[1]);
      unpack(words[word + 32], up[0], up[1]);
      return pack(swiglu<__nv_bfloat16>(gate[0], up[0], factor[i % 2]),
                  swiglu<__nv_bfloat16>(gate[1], up[1], factor[i % 2]));
    });
    if (slice == 3) store(maps.d, box(part), to.column + part * 64, to);
  }
};

/// The sums, rounded, are dh; c = the gradients of gate and up that are in d; dprob. Words are
/// those of StoreRows. A part loads 64 columns of gate and of up into the warp's boxes, and stores
/// their gradients from there.
struct StoreSwigluGradients : WarpBoxes {
  static constexpr int kStepsPerPart = 6;  // load, wait, four slices
  static constexpr int kSteps = 4 * kStepsPerPart;

  uint32_t parity = 0;
  float factor[2] = {1, 1};
  float sum[2] = {0, 0};

  __device__ __forceinline__ void step(int step, const Destination& to,
                                       const uint32_t (&words)[64]) {
    const int part = step / kStepsPerPart, slice = step % kStepsPerPart - 2;
    if (!exists(part, to)) return;
    if (step == 0) {
      load_factors(factor, to);
      sum[0] = sum[1] = 0;
    }
    if (slice == -2) return load(part, to);
    if (slice == -1) return;
    if (slice == 0) {
      hopper::wait_for(arrived, parity);
      parity ^= 1;
    }
    make_slice(part, slice, words);
    if (slice < 3) return;
    store(maps.c, box(0), to.column + part * 64, to);
    store(maps.c, box(1), to.column + part * 64 + p.ffn, to);
    if (p.dprob != nullptr && (part == 3 || !exists(part + 1, to))) store_sums(to);
  }

 private:
  __device__ __forceinline__ bool exists(int part, const Destination& to) const {
    return to.exists() && to.column + part * 64 < p.ffn;
  }

  __device__ __forceinline__ void load(int part, const Destination& to) const {
    if (lane != 0) return;
    hopper::wait_for_reads_of_boxes<0>();
    hopper::expect_bytes(arrived, 2 * kBytesBox);
    for (int half = 0; half < 2; ++half)
      hopper::load_box<false>(box(half), maps.d, arrived, to.column + part * 64 + half * p.ffn,
                              to.row, to.matrix, kRowsEnd);
  }

  __device__ __forceinline__ void make_slice(int part, int slice, const uint32_t (&words)[64]) {
    uint32_t gates[4], ups[4];
    load_matrices<false>(gates, matrices(box(0), slice));
    load_matrices<false>(ups, matrices(box(1), slice));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float dh[2], gate[2], up[2];
      unpack(words[part * 16 + slice * 4 + i], dh[0], dh[1]);
      unpack(gates[i], gate[0], gate[1]);
      unpack(ups[i], up[0], up[1]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const SwigluGradients gradients =
            swiglu_gradients<__nv_bfloat16>(dh[k], gate[k], up[k], factor[i % 2]);
        sum[i % 2] += gradients.prob;
        gate[k] = gradients.gate;
        up[k] = gradients.up;
      }
      gates[i] = pack(gate[0], gate[1]);
      ups[i] = pack(up[0], up[1]);
    }
    hopper::store_matrices(matrices(box(0), slice), gates);
    hopper::store_matrices(matrices(box(1), slice), ups);
  }

  __device__ __forceinline__ void store_sums(const Destination& to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = warp_sum<4>(sum[half]);
      const int row = to.global_row(static_cast<int>(lane / 4) + half * 8);
      if (lane % 4 == 0 && row < to.matrix)
        p.dprob[int64_t{to.column / 256} * p.num_rows + row] = total;
    }
  }
};

}  // namespace ferry::cuda::wgmma
