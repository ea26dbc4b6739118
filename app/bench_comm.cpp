#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/backend.h"
#include "app/bench.h"
#include "app/comm_message.h"
#include "core/comm/peer_copy.h"

namespace ferry {
namespace {

constexpr int64_t kKib = 1 << 10, kMib = 1 << 20;
constexpr int64_t kSizes[] = {4 * kKib, 64 * kKib, kMib, 16 * kMib, 256 * kMib, 1024 * kMib};

struct Case {
  CommKind kind;
  DType dtype;
};
// Sums in both dtypes that training sums in; what only moves bytes does not depend on theirs.
constexpr Case kCases[] = {
    {CommKind::AllReduce, DType::BF16}, {CommKind::AllReduce, DType::F32},
    {CommKind::AllGather, DType::BF16}, {CommKind::ReduceScatter, DType::BF16},
    {CommKind::AllToAll, DType::BF16},  {CommKind::PointToPoint, DType::BF16}};

// Messages shorter than this are timed one by one: it is their latency that matters. Of longer ones
// several follow each other. Half of a size, as one that the ranks do not divide loses some bytes.
constexpr int64_t kLongMessage = kMib / 2;
constexpr int kShortSamples = 51, kLongSamples = 9;
constexpr double kSecondsPerSample = 0.02;
constexpr int64_t kMaxCalls = 20;

struct Row {
  Case measured;
  int64_t bytes;
  int64_t calls;  // that follow each other in a sample
  CallTimes times;

  double rate() const { return static_cast<double>(bytes) / times.median; }
};

struct Ceiling {
  const char* name;
  double bytes_per_s;
};

// Seconds of one of `calls` calls by the clock of the device. One more goes before them, so that
// the ranks start together.
double sample(Stream& stream, CommMessage& message, int64_t calls) {
  message.restore();
  message.enqueue();
  const auto start = stream.stamp();
  for (int64_t i = 0; i < calls; ++i) message.enqueue();
  const double seconds = stream.stamp()->seconds_since(*start);
  stream.synchronize();  // throws the error of a call that failed
  return seconds / static_cast<double>(calls);
}

// On rank 0: of each sample the time of the slowest rank. Collective.
std::vector<double> slowest(const std::vector<double>& own, Control& control) {
  const std::string text = fmt::format("{}", fmt::join(own, " "));
  std::vector<double> result(own.size());
  for (const std::string& line : control.gather(text, 0, "times of bench comm")) {
    std::istringstream numbers(line);
    for (double& largest : result) {
      double seconds = 0;
      numbers >> seconds;
      largest = std::max(largest, seconds);
    }
  }
  return result;
}

int64_t agree_on_calls(double once, int64_t bytes, Control& control) {
  const auto calls = bytes < kLongMessage ? 1 : static_cast<int64_t>(kSecondsPerSample / once);
  const std::string agreed = control.broadcast(
      std::to_string(std::clamp<int64_t>(calls, 1, kMaxCalls)), 0, "number of calls of bench comm");
  return std::stoll(agreed);
}

// The times are rank 0's alone to use. Collective.
Row measure(const Case& measured, CommMessage& message, Stream& stream, Control& control) {
  const int64_t bytes = message.bytes();
  const int64_t calls = agree_on_calls(sample(stream, message, 1), bytes, control);
  std::vector<double> own;
  for (int i = 0; i < (bytes < kLongMessage ? kShortSamples : kLongSamples); ++i)
    own.push_back(sample(stream, message, calls));
  return {measured, bytes, calls, call_times(slowest(own, control))};
}

// What the memory or the link between ranks of one host gives; {"", 0} if there is no such figure.
Ceiling copy_ceiling(const Backend& backend, Runtime& runtime, Stream& stream) {
  Ceiling ceiling{"", 0};
  if (runtime.local_size() == runtime.size()) {
    // All ranks copy at once, as they do when they communicate. Read and written counts once.
    if (!backend.on_gpu()) ceiling = {"host copy", measure_copy_ceiling(stream) / 2};
    if (backend.on_gpu() && runtime.rank() == 0)
      if (const auto rate = measure_peer_copy(backend.device())) ceiling = {"peer copy", *rate};
  }
  runtime.control().barrier("ceiling of bench comm");
  return ceiling;
}

Ceiling largest_point_to_point(const std::vector<Row>& rows) {
  Ceiling ceiling{"largest point-to-point", 0};
  for (const Row& row : rows)
    if (row.measured.kind == CommKind::PointToPoint)
      ceiling.bytes_per_s = static_cast<double>(row.bytes) / row.times.fastest;
  return ceiling;
}

}  // namespace

ExitCode bench_comm(const RunConfig& config, Runtime& runtime, int64_t max_mib, bool json,
                    const std::string& command) {
  const int size = runtime.size();
  if (size < 2)
    fail(ExitCode::Usage,
         "error: ferry bench comm needs at least two ranks\n  why : it measures what ranks send "
         "each other, and this is the only one\n  try : mpirun -n 2 ",
         command);
  const Backend backend = choose_backend(config, runtime);
  const auto stream = backend.device().make_stream("bench");
  Ceiling ceiling = copy_ceiling(backend, runtime, *stream);

  std::vector<Row> rows;
  {
    const PipelineLinks ring(*backend.world, backend.device(), 2);
    for (const Case& measured : kCases)
      for (const int64_t bytes : kSizes) {
        if (bytes > max_mib * kMib) continue;
        CommMessage message(measured.kind, bytes, measured.dtype, *stream, *backend.world, ring);
        const uint64_t seed = rows.size() + 1;
        message.fill(seed);
        message.restore();
        message.enqueue();
        message.check(seed);
        rows.push_back(measure(measured, message, *stream, runtime.control()));
      }
  }
  if (runtime.rank() != 0) return ExitCode::Done;

  if (ceiling.bytes_per_s == 0) ceiling = largest_point_to_point(rows);
  if (!json)
    std::cout << fmt::format(
        "{} ranks, {}; ceiling: {}, {:.1f} GB/s\n{:<16} {:>6} {:>11} {:>12} {:>12} {:>10} {:>10} "
        "{:>11}\n",
        size, backend.transport, ceiling.name, ceiling.bytes_per_s / 1e9, "name", "dtype", "bytes",
        "median us", "fastest us", "GB/s", "bus GB/s", "of ceiling");
  for (const Row& row : rows) {
    const char* name = name_of(row.measured.kind);
    const double bus_rate = row.rate() * bus_factor(row.measured.kind, size);
    if (!json) {
      std::cout << fmt::format(
          "{:<16} {:>6} {:>11} {:>12.1f} {:>12.1f} {:>10.2f} {:>10.2f} {:>10.1f}%\n", name,
          name_of(row.measured.dtype), row.bytes, 1e6 * row.times.median, 1e6 * row.times.fastest,
          row.rate() / 1e9, bus_rate / 1e9, 100 * bus_rate / ceiling.bytes_per_s);
      continue;
    }
    nlohmann::ordered_json object = {{"bench", "comm"}, {"config", config.run.name}};
    object["name"] = name;
    object["dtype"] = name_of(row.measured.dtype);
    object["ranks"] = size;
    object["transport"] = backend.transport;
    object["bytes"] = row.bytes;
    object["calls"] = row.calls;
    add_times(object, row.times);
    object["gb_per_s"] = row.rate() / 1e9;
    object["bus_gb_per_s"] = bus_rate / 1e9;
    object["of_ceiling"] = bus_rate / ceiling.bytes_per_s;
    object["ceiling"] = ceiling.name;
    object["ceiling_gb_per_s"] = ceiling.bytes_per_s / 1e9;
    add_origin(object, backend.device().name(), command);
    std::cout << object.dump() << "\n";
  }
  std::cout << std::flush;
  return ExitCode::Done;
}

}  // namespace ferry
