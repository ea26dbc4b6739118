#pragma once

// What Hopper (sm_90a) has for matrix kernels, one function for each instruction used: barriers in
// shared memory, copies of boxes of tensors (TMA), products of warpgroups, clusters of two blocks.
// Addresses of shared memory are 32-bit (shared_address); where a barrier or a box is of another
// block of the cluster, the function says so.

#include <cuda.h>

#include <cstdint>

namespace ferry::cuda::hopper {

// ---------------------------------------------------------------- clusters

__device__ __forceinline__ uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// All threads of both blocks; what they wrote to shared memory before is seen after.
__device__ __forceinline__ void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---------------------------------------------------------------- barriers

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// After all barriers are initialised, before other threads, blocks or copies use them.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Arrives, and expects that many bytes of copies besides.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Arrives when all that this thread began to copy (cp.async) is in shared memory.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Arrives at the barrier that a block of the cluster has at this address. Without `.release`: a
/// release at cluster scope becomes a fence of all memory, which costs a fifth of the kernel, and
/// what the arrival is about, reads of shared memory by products that were waited for, is done.
__device__ __forceinline__ void arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ bool has_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
/// Waits for the phase of this parity. A wait of a minute is a bug: the kernel ends with an error,
/// an illegal address, instead of hanging the device.
__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) {
  constexpr uint64_t kLimit = 60'000'000'000;
  if (has_passed(barrier, parity)) return;
  uint64_t start = 0;
#pragma unroll 1
  for (uint32_t tries = 1; !has_passed(barrier, parity); ++tries) {
    if (tries % 64 != 0) continue;
    const uint64_t now = nanoseconds();
    if (start == 0) start = now;
    // Not trap, which makes ptxas limit the registers of the whole kernel.
    if (now - start > kLimit)
      asm volatile("st.global.u32 [%0], %1;" ::"l"(uint64_t{0}), "r"(0) : "memory");
  }
}

/// Four bytes into the shared memory of a block of the cluster, counted by its barrier.
__device__ __forceinline__ void store_async(uint32_t address, uint32_t value, uint32_t barrier,
                                            uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %3;\n"
      "mapa.shared::cluster.u32 remote_barrier, %1, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [remote], %2, "
      "[remote_barrier];\n}" ::"r"(address),
      "r"(barrier), "r"(value), "r"(rank)
      : "memory");
}

// ---------------------------------------------------------------- copies of boxes

/// The box at these coordinates (the contiguous dim first) to shared memory; elements outside of
/// the tensor are zeros, and count as copied. kMulticast: to this address of both blocks, counted
/// by the barrier of each.
template <bool kMulticast>
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                         int c0, int c1, int c2) {
  if constexpr (kMulticast)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "h"(uint16_t{3})
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4, %5}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}
template <bool kMulticast>
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                         int c0, int c1, int c2, int c3) {
  if constexpr (kMulticast)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(uint16_t{3})
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}
template <bool kMulticast>
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                         int c0, int c1, int c2, int c3, int c4) {
  if constexpr (kMulticast)
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(uint16_t{3})
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

/// The box in shared memory to these coordinates; elements outside of the tensor are dropped.
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int c0, int c1,
                                          int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
/// Adds the box in shared memory to what is there.
__device__ __forceinline__ void add_box(const CUtensorMap& map, uint32_t from, int c0, int c1,
                                        int c2) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], "
      "[%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void commit_boxes() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until at most kPending of this thread's newest groups of boxes still read shared memory.
template <int kPending>
__device__ __forceinline__ void wait_for_reads_of_boxes() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Waits until all of this thread's boxes are written.
__device__ __forceinline__ void wait_for_boxes() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/// What this thread wrote to shared memory is seen by copies of boxes and by products.
__device__ __forceinline__ void publish_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8,
/// and holds row l / 4, elements 2 * (l % 4) and the next, of each.
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&fragment)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
}

// ---------------------------------------------------------------- registers and products

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending of the newest groups of products are unfinished.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// An operand in shared memory that a copy with 128-byte swizzle brought: kMajor: its rows are 64
/// elements of the summed index; else 64 rows (columns) of c, and the summed index goes down.
template <bool kDepthContiguous>
struct OperandAddress {
  /// To the next 16 of the summed index.
  static constexpr uint64_t kStep = kDepthContiguous ? 32 / 16 : 2048 / 16;

  __device__ __forceinline__ static uint64_t descriptor(uint32_t address) {
    // In 16 bytes: from 8 rows to the next, and, where the summed index goes down, from 64 columns
    // to the next. In a cluster, bits from 24 up of the address are the rank of the block.
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kRows = uint64_t{1024 / 16} << 32;
    constexpr uint64_t kColumns = uint64_t{kDepthContiguous ? 1 : 8192 / 16} << 16;
    return kSwizzle128 | kRows | kColumns | ((address & 0x3ffff) >> 4);
  }
};

/// Sums of 64 x 256 for a warpgroup, in two halves of 128 columns. Thread t has of each 8 columns q
/// row 16 * (t / 32) + t % 32 / 4, columns 8 q + t % 4 * 2 and the next, in elements 4 q and 4 q +
/// 1, and of the row 8 below in the two after.
using Sums = float[2][64];

#define FERRY_SUMS_8(s, i)                                                                    \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), \
      "+f"(s[i + 6]), "+f"(s[i + 7])
#define FERRY_SUMS_64(s)                                                            \
  FERRY_SUMS_8(s, 0), FERRY_SUMS_8(s, 8), FERRY_SUMS_8(s, 16), FERRY_SUMS_8(s, 24), \
      FERRY_SUMS_8(s, 32), FERRY_SUMS_8(s, 40), FERRY_SUMS_8(s, 48), FERRY_SUMS_8(s, 56)

/// sums = a * b (+ sums if `accumulate`), of 64 x 16 and 16 x 256 BF16.
template <bool kDepthContiguousA, bool kDepthContiguousB>
__device__ __forceinline__ void multiply(Sums& sums, uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, %128, %129, p, 1, 1, %131, %132;\n}\n"
      : FERRY_SUMS_64(sums[0]), FERRY_SUMS_64(sums[1])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kDepthContiguousA ? 0 : 1),
        "n"(kDepthContiguousB ? 0 : 1));
}

#undef FERRY_SUMS_64
#undef FERRY_SUMS_8

}  // namespace ferry::cuda::hopper
