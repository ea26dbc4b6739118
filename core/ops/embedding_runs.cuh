#pragma once

// The backward kernels of embedding_cuda.cu. Tokens are sorted, so that equal ones are a run, whose
// rows of dy are added to one row of dweight in the order of their positions.

#include <cuda_runtime.h>

#include <type_traits>

#include "core/ops/mma.cuh"
#include "core/ops/packed_cuda.cuh"
#include "core/ops/vector_cuda.cuh"

namespace ferry::cuda::runs {

constexpr int kThreads = 256;

// The tokens whose rows are here: [first, first + rows).
struct Part {
  int64_t first;
  int64_t rows;
  __device__ bool has(int64_t token) const { return token >= first && token < first + rows; }
};

// A token and its position in the batch. As a 64-bit key, the token has the high bits.
struct alignas(8) PlacedToken {
  int32_t position;
  int32_t token;
};

// The rows of dy in order of token, and the rows of dweight that they are added to.
template <class T>
struct SortedRows {
  float* dweight;
  const T* dy;
  const PlacedToken* sorted;
  int count;
  int columns;
  Part part;

  // Before the first and after the last is no token: -1.
  __device__ PlacedToken at(int idx) const {
    return idx >= 0 && idx < count ? sorted[idx] : PlacedToken{0, -1};
  }
  __device__ float* sum_at(int32_t token, int column) const {
    return dweight + (token - part.first) * columns + column;
  }
  __device__ const T* row_at(int position, int column) const {
    return dy + static_cast<int64_t>(position) * columns + column;
  }
};

template <class Packed, int kWidth>
__device__ inline void add(float (&sum)[kWidth], Packed packed) {
  float x[kWidth];
  unpack(packed, x);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum[j] += x[j];
}

// Runs of at least this many tokens are long: their additions, one after another, would go on when
// those of all other runs have ended.
constexpr int kLongRun = 128;

// One block per sorted token; its threads have neighbouring columns (blockIdx.y goes on). The block
// of the first token of a run adds the rows of the run to the row of dweight, in order; the others,
// and those of tokens that are not here, have nothing to do. Reads dy once, reads and writes each
// row of dweight that has tokens once. Runs are short: all that one of two tokens needs to know is
// read at once, then the row of dweight with two rows of dy. Vectors leave long runs to
// add_long_kernel.
template <class Packed, class T>
__global__ void __launch_bounds__(kThreads, 2048 / kThreads) add_kernel(const SortedRows<T> rows) {
  constexpr int kWidth = sizeof(Packed) / sizeof(T);
  int idx = static_cast<int>(blockIdx.x);
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kWidth;
  if (c >= rows.columns) return;
  PlacedToken first = rows.at(idx), second = rows.at(idx + 1);
  int32_t third = rows.at(idx + 2).token;
  const int32_t before = rows.at(idx - 1).token, token = first.token;
  const int32_t end_of_long = kWidth > 1 ? rows.at(idx + kLongRun - 1).token : -1;
  if (before == token || end_of_long == token || !rows.part.has(token)) return;

  float sum[kWidth];
  load<kWidth>(rows.sum_at(token, c), sum);
  for (bool more = true; more;) {
    const bool two = second.token == token;
    const auto row = [&](const PlacedToken& placed) {
      return __ldg(reinterpret_cast<const Packed*>(rows.row_at(placed.position, c)));
    };
    const Packed first_row = row(first), second_row = two ? row(second) : Packed{};
    more = two && third == token;
    if (more) {
      idx += 2;
      first = rows.at(idx);
      second = rows.at(idx + 1);
      third = rows.at(idx + 2).token;
    }
    add(sum, first_row);
    if (two) add(sum, second_row);
  }
  store<kWidth>(rows.sum_at(token, c), sum);
}

// What add_long_kernel has of the rows of a run: 32 words, one for each lane of the warp that adds.
template <class T>
struct LongRun {
  using Word = std::conditional_t<sizeof(T) == 2, uint32_t, float>;
  static constexpr int kRows = 128;  // of a stage
  static constexpr int kStages = 4;
  static constexpr int kWords = 32;
  static constexpr int kPerWord = sizeof(Word) / sizeof(T);
  static constexpr int kColumns = kWords * kPerWord;
  static constexpr int kSharedBytes = kStages * kRows * kWords * sizeof(Word);
};

// The sorted tokens [begin, end).
struct Run {
  int begin;
  int end;
};

// The long run that this block is to add; an empty one for most blocks. The first multiple of
// kLongRun in a long run is the one whose blocks have it. All threads must call.
template <class T>
__device__ Run find_long_run(const SortedRows<T>& rows) {
  const int middle = static_cast<int>(blockIdx.x) * kLongRun, thread = threadIdx.x;
  const int32_t token = rows.at(middle).token;
  if (rows.at(middle - kLongRun).token == token || !rows.part.has(token)) return {0, 0};
  const int begin = middle - __syncthreads_count(thread >= 1 && thread < kLongRun &&
                                                 rows.at(middle - thread).token == token);
  if (rows.at(begin + kLongRun - 1).token != token) return {0, 0};
  int end = begin + kLongRun, beyond = rows.count;  // the first of another token is in between
  while (end < beyond) {
    const int half = (end + beyond) / 2;
    if (rows.at(half).token == token) {
      end = half + 1;
    } else {
      beyond = half;
    }
  }
  return {begin, end};
}

// One block per multiple of kLongRun among the sorted tokens and 32 words of columns (blockIdx.y).
// All threads copy rows to shared memory, kStages - 1 stages in flight; one warp adds them, in
// order. The columns are whole vectors.
template <class T>
__global__ void __launch_bounds__(kThreads) add_long_kernel(const SortedRows<T> rows) {
  using L = LongRun<T>;
  using Word = typename L::Word;
  constexpr int kCopiers = L::kWords / 4;     // threads that copy one row, 16 bytes each
  constexpr int kStep = kThreads / kCopiers;  // rows that are copied at once
  constexpr int kEach = L::kRows / kStep;     // rows of a stage that a thread copies
  extern __shared__ __align__(16) uint32_t shared_words[];  // [kStages][kRows][kWords]
  const Run run = find_long_run(rows);
  if (run.begin == run.end) return;

  const int thread = threadIdx.x, first_column = static_cast<int>(blockIdx.y) * L::kColumns;
  const auto stage_at = [&](int stage) {
    return shared_words + stage % L::kStages * (L::kRows * L::kWords);
  };
  // Of the rows of the next stage that this thread copies; -1 for none. They are read a stage
  // ahead, so that the copies, which the additions wait for, do not wait for them.
  int positions[kEach];
  const int first_row = thread / kCopiers, copied = first_column + thread % kCopiers * kVector<T>;
  const auto read_positions = [&](int stage) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int idx = run.begin + stage * L::kRows + first_row + i * kStep;
      positions[i] = idx < run.end && copied < rows.columns ? rows.sorted[idx].position : -1;
    }
  };
  const auto copy_stage = [&](int stage) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (positions[i] < 0) continue;
      const int row = first_row + i * kStep;
      copy_async(shared_address(stage_at(stage) + row * L::kWords + thread % kCopiers * 4),
                 rows.row_at(positions[i], copied));
    }
    commit_copies();  // without copies, too: the groups of this thread are counted
    read_positions(stage + 1);
  };

  const int c = first_column + thread * L::kPerWord;
  const bool adds = thread < L::kWords && c < rows.columns;
  float* to = rows.sum_at(rows.sorted[run.begin].token, c);
  float sum[L::kPerWord] = {};
  if (adds) load<L::kPerWord>(to, sum);
  read_positions(0);
  for (int stage = 0; stage < L::kStages - 1; ++stage) copy_stage(stage);
  const int num_stages = static_cast<int>(ceil_div(run.end - run.begin, L::kRows));
  for (int stage = 0; stage < num_stages; ++stage) {
    wait_for_copies<L::kStages - 2>();  // this thread's part of the stage is there
    __syncthreads();                    // all of it is, and the stage before has been added
    copy_stage(stage + L::kStages - 1);
    if (!adds) continue;
    const Word* words = reinterpret_cast<const Word*>(stage_at(stage)) + thread;
    const int stage_rows = min(L::kRows, run.end - run.begin - stage * L::kRows);
#pragma unroll 16
    for (int row = 0; row < stage_rows; ++row) add(sum, words[row * L::kWords]);
  }
  if (adds) store<L::kPerWord>(to, sum);
}

}  // namespace ferry::cuda::runs
