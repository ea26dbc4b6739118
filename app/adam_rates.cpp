#include "app/adam_rates.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "app/copy_loop.h"
#include "app/cpu_binding.h"
#include "core/ops/adamw_kernels.h"
#include "core/ops/sgd_kernels.h"
#include "core/seconds_since.h"
#include "core/worker_pool.h"

namespace ferry {
namespace {

constexpr int kRounds = 7;
constexpr int64_t kMib = 1 << 20;
// What a thread takes at a time: long enough that taking it costs nothing, short enough that the
// threads end together.
constexpr int64_t kChunk = 1 << 16;
constexpr int64_t kCopyBytes = 64 * kMib;
constexpr int64_t kGpuElements = 1 << 27;
constexpr AdamwSettings kAdamw{.lr = 1e-6, .weight_decay = 0.1, .step = 10, .grad_scale = 0.5};
constexpr SgdSettings kSgd{.lr = 1e-6, .momentum = 0.9, .weight_decay = 0.1, .grad_scale = 0.5};

// What a thread does with a part of the arrays.
using Work = std::function<void(const UpdateArrays&)>;

// A row of the table that is to be measured.
struct Case {
  AdamRow row;
  Work work;
};

Case loop_case(HostLoop loop) {
  return {{.name = name_of(loop),
           .vectors = std::string(name_of(vector_level())),
           .bytes_per_element = bytes_per_element(loop)},
          [loop](const UpdateArrays& arrays) { run_host_loop(loop, arrays); }};
}

Case adamw_case(VectorLevel level) {
  return {{.name = "adamw",
           .vectors = std::string(name_of(level)),
           .bytes_per_element = bytes_per_element(HostLoop::AdamwPattern),
           .is_update = true},
          [level](const UpdateArrays& a) {
            cpu::adamw_at(level, a.value, a.master, a.exp_avg, a.exp_avg_sq, a.grad, kAdamw);
          }};
}

Case sgd_case(VectorLevel level) {
  return {{.name = "sgd",
           .vectors = std::string(name_of(level)),
           .bytes_per_element = bytes_per_element(HostLoop::SgdPattern),
           .is_update = true},
          [level](const UpdateArrays& a) {
            cpu::sgd_at(level, a.value, a.master, a.exp_avg, a.grad, kSgd);
          }};
}

std::vector<VectorLevel> levels() {
  std::vector<VectorLevel> result;
  for (const VectorLevel level : {VectorLevel::Portable, VectorLevel::Avx2, VectorLevel::Avx512})
    if (level <= vector_level()) result.push_back(level);
  return result;
}

// Calls body(begin, end) for all chunks of [0, elements).
void run_chunks(WorkerPool& pool, int64_t elements,
                const std::function<void(int64_t, int64_t)>& body) {
  pool.run((elements + kChunk - 1) / kChunk,
           [&](int64_t i) { body(i * kChunk, std::min((i + 1) * kChunk, elements)); });
}

void work_on(WorkerPool& pool, const UpdateArrays& arrays, const Work& work) {
  run_chunks(pool, arrays.size(),
             [&](int64_t begin, int64_t end) { work(arrays.part(begin, end)); });
}

// All cases take turns, so that a machine that changes its pace does so for all of them.
std::vector<AdamRow> take_turns(WorkerPool& pool, const UpdateArrays& arrays,
                                const std::vector<Case>& cases) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> times(cases.size());
  for (int round = 0; round <= kRounds; ++round)
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto start = Clock::now();
      work_on(pool, arrays, cases[i].work);
      const double seconds = seconds_since(start);
      if (round > 0) times[i].push_back(seconds);  // the first warms up
    }
  std::vector<AdamRow> rows;
  for (size_t i = 0; i < cases.size(); ++i) {
    AdamRow row = cases[i].row;
    row.threads = pool.num_threads();
    row.elements = arrays.size();
    row.times = call_times(times[i]);
    rows.push_back(row);
  }
  return rows;
}

// Every level gives the bits of the portable loop, from all threads, in chunks.
void check_levels(Device& device, WorkerPool& pool) {
  const int64_t n = 5 * kChunk + 77;
  const UpdateArrays expected = UpdateArrays::allocate(device, n);
  const UpdateArrays actual = UpdateArrays::allocate(device, n);
  const auto compare = [&](const Case& portable, const Case& wide) {
    expected.fill(0);
    portable.work(expected);
    actual.fill(0);
    work_on(pool, actual, wide.work);
    for (const auto array : {&UpdateArrays::value, &UpdateArrays::master, &UpdateArrays::exp_avg,
                             &UpdateArrays::exp_avg_sq}) {
      const Tensor &got = actual.*array, &want = expected.*array;
      CHECK(std::memcmp(got.raw(), want.raw(), static_cast<size_t>(got.bytes())) == 0,
            wide.row.name, " with ", wide.row.vectors, " vectors differs from the portable loop");
    }
  };
  for (const VectorLevel level : levels()) {
    compare(adamw_case(VectorLevel::Portable), adamw_case(level));
    compare(sgd_case(VectorLevel::Portable), sgd_case(level));
  }
}

// The most that one of the loops reached, with any number of threads.
double best_rate(const std::vector<AdamRow>& rows, std::initializer_list<HostLoop> loops) {
  double best = 0;
  for (const AdamRow& row : rows)
    for (const HostLoop loop : loops)
      if (row.name == name_of(loop)) best = std::max(best, row.rate());
  return best;
}

std::vector<AdamRow> with_threads(WorkerPool& pool, const UpdateArrays& arrays,
                                  const std::vector<VectorLevel>& levels) {
  std::vector<Case> cases;
  for (const HostLoop loop : {HostLoop::Read, HostLoop::Copy, HostLoop::Triad,
                              HostLoop::AdamwPattern, HostLoop::AdamwOrdinary})
    cases.push_back(loop_case(loop));
  for (const VectorLevel level : levels) cases.push_back(adamw_case(level));
  cases.push_back(loop_case(HostLoop::SgdPattern));
  for (const VectorLevel level : levels) cases.push_back(sgd_case(level));
  return take_turns(pool, arrays, cases);
}

void set_ceilings(AdamRates& rates) {
  const auto best = [&](std::initializer_list<HostLoop> loops) {
    return best_rate(rates.rows, loops);
  };
  rates.read = best({HostLoop::Read});
  rates.copy = best({HostLoop::Copy});
  rates.triad = best({HostLoop::Triad});
  const double adamw = best({HostLoop::AdamwPattern, HostLoop::AdamwOrdinary});
  const double sgd = best({HostLoop::SgdPattern});
  for (AdamRow& row : rates.rows) {
    row.ceiling = row.name.starts_with("adamw")         ? adamw
                  : row.name.starts_with("sgd")         ? sgd
                  : row.name == name_of(HostLoop::Read) ? rates.read
                  : row.name == name_of(HostLoop::Copy) ? rates.copy
                                                        : rates.triad;
  }
}

// The memory of the host serves the copies, too, so the ceiling here is that of the pattern beside
// the same copies.
std::vector<AdamRow> beside_copies(Device& gpu, WorkerPool& pool, const UpdateArrays& arrays) {
  const auto stream = gpu.make_stream("bench");
  const Shape shape{kCopyBytes / 4};
  const Tensor from_gpu = Tensor::empty(*stream, "bench adam", shape, DType::F32);
  const Tensor to_gpu = Tensor::empty(*stream, "bench adam", shape, DType::F32);
  const Tensor to_host = Tensor::host(gpu, "bench adam", shape, DType::F32);
  const Tensor from_host = Tensor::host(gpu, "bench adam", shape, DType::F32);
  stream->zero(from_gpu);
  stream->zero(to_gpu);
  stream->synchronize();
  std::memset(from_host.raw(), 0, static_cast<size_t>(from_host.bytes()));

  CopyLoop d2h(gpu, to_host, from_gpu), h2d(gpu, to_gpu, from_host);
  std::vector<AdamRow> rows =
      take_turns(pool, arrays, {loop_case(HostLoop::AdamwPattern), adamw_case(vector_level())});
  const double d2h_rate = d2h.stop(), h2d_rate = h2d.stop();
  const double ceiling = rows.front().rate();
  for (AdamRow& row : rows) {
    row.name += " beside copies";
    row.ceiling = ceiling;
    row.d2h = d2h_rate;
    row.h2d = h2d_rate;
  }
  return rows;
}

AdamRow on_gpu(Device& gpu, const UpdateArrays& arrays) {
  const auto stream = gpu.make_stream("bench");
  const UpdateArrays host = arrays.part(0, std::min(arrays.size(), kGpuElements));
  const auto copy = [&](const Tensor& from) {
    const Tensor to = Tensor::empty(*stream, "bench adam", from.shape(), from.dtype());
    stream->copy(to, from);
    return to;
  };
  const Tensor value = copy(host.value), master = copy(host.master), grad = copy(host.grad);
  const Tensor exp_avg = copy(host.exp_avg), exp_avg_sq = copy(host.exp_avg_sq);
  AdamRow row = adamw_case(VectorLevel::Portable).row;
  row.name = "adamw on the GPU";
  row.vectors.clear();
  row.elements = host.size();
  row.times = time_calls(*stream,
                         [&] { adamw(*stream, value, master, exp_avg, exp_avg_sq, grad, kAdamw); });
  row.ceiling = measure_copy_ceiling(*stream);
  return row;
}

}  // namespace

AdamRates measure_adam(Backend& backend, int64_t elements) {
  const auto num_threads = static_cast<int>(allowed_cpus().size());
  WorkerPool all_threads(num_threads);
  check_levels(backend.device(), all_threads);
  const UpdateArrays arrays = UpdateArrays::allocate(backend.device(), elements);
  const auto fill = [&] {
    run_chunks(all_threads, elements,
               [&](int64_t begin, int64_t end) { arrays.part(begin, end).fill(begin); });
  };

  AdamRates rates;
  const auto add = [&](const std::vector<AdamRow>& rows) {
    rates.rows.insert(rates.rows.end(), rows.begin(), rows.end());
  };
  for (int threads = 1; threads < num_threads; threads *= 2) {
    fill();
    WorkerPool pool(threads);
    add(with_threads(pool, arrays, {vector_level()}));
  }
  fill();
  add(with_threads(all_threads, arrays, levels()));
  set_ceilings(rates);
  if (backend.on_gpu()) {
    fill();
    add(beside_copies(*backend.cuda, all_threads, arrays));
    add({on_gpu(*backend.cuda, arrays)});
  }
  return rates;
}

int64_t chosen_elements(int64_t cache_bytes, int64_t free_bytes) {
  // At least the largest caches of 2023: a virtual machine may not know its cache.
  const int64_t wanted = 4 * std::max(cache_bytes, 256 * kMib);
  return std::max<int64_t>(std::min(wanted, free_bytes / 4) / kUpdateArrayBytes, 1);
}

}  // namespace ferry
