#include "app/bench_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/backend.h"
#include "app/bench.h"
#include "app/bench_steps.h"
#include "app/model/cost_model.h"
#include "app/train_state.h"
#include "checkpoint/agreement.h"
#include "checkpoint/chunk_loop.h"
#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "core/median.h"
#include "core/ops/elementwise.h"
#include "core/seconds_since.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kColumns = 1024;
/// A weight of a large model has about so many bytes.
constexpr int64_t kTensorBytes = int64_t{256} << 20;
constexpr int64_t kChunkBytes = int64_t{4} << 20;

/// A rank's share of the state, on the device and in host memory.
class State32 {
 public:
  State32(Stream& stream, int rank, int64_t bytes) : stream_(stream) {
    const int64_t all_rows = std::max<int64_t>(1, bytes / (4 * kColumns));
    for (int64_t row = 0; row < all_rows;) {
      const int64_t rows = std::min(all_rows - row, kTensorBytes / (4 * kColumns));
      const Shape shape{rows, kColumns};
      device_.push_back(Tensor::empty(stream, "bench", shape, DType::F32));
      host_.push_back(Tensor::host(stream.device(), "bench", shape, DType::F32));
      fill_normal(stream, device_.back(), 1.0,
                  {1, static_cast<uint32_t>(rank), static_cast<uint32_t>(device_.size())}, 0);
      names_.push_back(fmt::format("model/rank{}/part{:04}", rank, device_.size()));
      row += rows;
    }
    copy_to_host();  // which also touches the memory for the first time
  }

  /// Seconds of what a step waits for at the start of an asynchronous save, if nothing hides it.
  double copy_to_host() {
    stream_.synchronize();
    const auto start = Clock::now();
    for (size_t i = 0; i < host_.size(); ++i) stream_.copy(host_[i], device_[i]);
    stream_.synchronize();
    return seconds_since(start);
  }

  std::vector<SliceToSave> to_save() const {
    std::vector<SliceToSave> slices;
    for (size_t i = 0; i < host_.size(); ++i)
      slices.push_back(
          {names_[i], DType::F32, host_[i].shape(), {0, 0}, host_[i].shape(), host_[i].raw()});
    return slices;
  }
  std::vector<SliceToLoad> to_load() const {
    std::vector<SliceToLoad> slices;
    for (size_t i = 0; i < host_.size(); ++i)
      slices.push_back(
          {names_[i], DType::F32, host_[i].shape(), {0, 0}, host_[i].shape(), host_[i].raw()});
    return slices;
  }
  const std::vector<Tensor>& host() const { return host_; }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Tensor& tensor : host_) bytes += tensor.bytes();
    return bytes;
  }

 private:
  Stream& stream_;
  std::vector<Tensor> device_;
  std::vector<Tensor> host_;
  std::vector<std::string> names_;
};

/// A file with the bytes of the state and nothing else, by the threads that a shard is written by.
class RawFile {
 public:
  RawFile(Path path, const State32& state) : path_(std::move(path)), state_(state) {
    int64_t position = 0;
    for (const Tensor& tensor : state.host()) {
      auto* data = static_cast<char*>(tensor.raw());
      for (int64_t begin = 0; begin < tensor.bytes(); begin += kChunkBytes)
        pieces_.push_back(
            {data + begin, std::min(kChunkBytes, tensor.bytes() - begin), position + begin});
      position += tensor.bytes();
    }
  }

  void write(bool direct) const {
    const auto file = posix_file_system().create(path_);
    for_each_piece([&](const Piece& piece) {
      const auto bytes = static_cast<size_t>(piece.bytes);
      if (direct) {
        file->write_direct(piece.data, bytes, piece.position);
      } else {
        file->write_at(piece.data, bytes, piece.position);
      }
    });
    file->sync();
    file->close();
  }
  void read() const {
    const auto file = posix_file_system().open(path_);
    for_each_piece([&](const Piece& piece) {
      file->read_at(piece.data, static_cast<size_t>(piece.bytes), piece.position);
    });
  }
  void drop_cache() const { posix_file_system().open(path_)->drop_cache(); }
  void remove() const { posix_file_system().remove_file(path_); }

 private:
  struct Piece {
    char* data;
    int64_t bytes;
    int64_t position;
  };
  void for_each_piece(const std::function<void(const Piece&)>& work) const {
    for_each_chunk(choose_io_threads(state_.bytes()), std::ssize(pieces_), 0,
                   [&](int64_t i, char*) { work(pieces_[static_cast<size_t>(i)]); });
  }

  Path path_;
  const State32& state_;
  std::vector<Piece> pieces_;
};

/// Seconds of one round, of the slowest rank each.
struct Round {
  double copy = 0;
  double write_direct = 0;
  double write_cached = 0;
  double read = 0;
  double save_write = 0;  // to the end of the sync
  double verify = 0;
  double save = 0;
  double load = 0;
};

class CheckpointBench {
 public:
  CheckpointBench(Runtime& runtime, State32& state, Path directory)
      : control_(runtime.control()), state_(state), directory_(std::move(directory)) {}

  Round round() {
    Round seconds;
    seconds.copy = slowest([&] { return state_.copy_to_host(); });
    const RawFile raw(directory_ / fmt::format("raw-{:05}", control_.rank()), state_);
    seconds.write_cached = timed([&] { raw.write(false); });
    together([&] { raw.remove(); });
    seconds.write_direct = timed([&] { raw.write(true); });
    together([&] { raw.drop_cache(); });
    seconds.read = timed([&] { raw.read(); });
    together([&] { raw.remove(); });
    checkpoint(seconds);
    return seconds;
  }

 private:
  void checkpoint(Round& seconds) {
    const Path run = directory_ / "run";
    const std::vector<SliceToSave> slices = state_.to_save();
    SaveRequest request;
    request.run_dir = run;
    request.step = 1;
    request.attempt = begin_attempt(run, control_).number;
    request.slices = slices;
    request.state = {{"step", int64_t{1}}};
    request.layout = "bench";
    request.chunk_bytes = kChunkBytes;
    const SaveReport report = save_checkpoint(request, control_);
    seconds.save_write = report.write_seconds + report.sync_seconds;
    seconds.verify = report.verify_seconds;
    seconds.save = report.seconds;

    const Checkpoint saved = Checkpoint::open(report.directory);
    together([&] {
      posix_file_system().open(report.directory / shard_file_name(control_.rank()))->drop_cache();
    });
    seconds.load = timed([&] { saved.load(state_.to_load()); });
    decide_on_root(control_, "remove the checkpoint", [&] {
      remove_tree(posix_file_system(), run);
      return std::string();
    });
  }

  void together(const std::function<void()>& body) {
    gather_together(control_, "bench checkpoint", [&] {
      body();
      return std::string();
    });
  }
  double timed(const std::function<void()>& body) {
    return slowest([&] {
      const auto start = Clock::now();
      body();
      return seconds_since(start);
    });
  }
  /// Begins together, and returns the largest number on every rank.
  double slowest(const std::function<double()>& body) {
    control_.barrier("bench checkpoint");
    const auto texts =
        gather_together(control_, "bench checkpoint", [&] { return fmt::format("{}", body()); });
    double largest = 0;
    for (const std::string& text : texts) largest = std::max(largest, std::stod(text));
    return std::stod(control_.broadcast(fmt::format("{}", largest), 0, "bench checkpoint"));
  }

  Control& control_;
  State32& state_;
  Path directory_;
};

Round median_of(const std::vector<Round>& rounds) {
  const auto pick = [&](double Round::*member) {
    std::vector<double> values;
    for (const Round& round : rounds) values.push_back(round.*member);
    return median(values);
  };
  return {pick(&Round::copy), pick(&Round::write_direct), pick(&Round::write_cached),
          pick(&Round::read), pick(&Round::save_write),   pick(&Round::verify),
          pick(&Round::save), pick(&Round::load)};
}

nlohmann::ordered_json row_of(const Round& seconds, double bytes) {
  const auto rate = [&](double s) { return bytes / s / 1e9; };
  const double raw_write = std::min(seconds.write_direct, seconds.write_cached);
  return {{"raw_write_gb_per_s", rate(seconds.write_direct)},
          {"raw_cached_write_gb_per_s", rate(seconds.write_cached)},
          {"raw_read_gb_per_s", rate(seconds.read)},
          {"save_write_gb_per_s", rate(seconds.save_write)},
          {"save_write_of_raw", raw_write / seconds.save_write},
          {"save_verify_gb_per_s", rate(seconds.verify)},
          {"load_gb_per_s", rate(seconds.load)},
          {"load_of_raw", seconds.read / seconds.load},
          {"save_s", seconds.save},
          {"copy_s", seconds.copy},
          {"copy_of_save", seconds.copy / seconds.save}};
}

void print_table(const nlohmann::ordered_json& row) {
  const auto number = [&](const char* key) { return row.at(key).get<double>(); };
  std::cout << fmt::format(
      "{:.2f} GiB of state, {} ranks with {} threads each, {}\n"
      "plain file   write {:.2f} GB/s direct, {:.2f} cached   read {:.2f} GB/s\n"
      "save         write {:.2f} GB/s, {:.2f} of the faster   verify {:.2f} GB/s   in all {:.2f} "
      "s\n"
      "load         {:.2f} GB/s, {:.2f} of the plain read, every digest checked\n"
      "copy         {:.3f} s, {:.2f}% of the save\n",
      number("bytes") / (1 << 30), row.at("ranks").get<int>(), row.at("threads").get<int>(),
      row.at("machine").get<std::string>(), number("raw_write_gb_per_s"),
      number("raw_cached_write_gb_per_s"), number("raw_read_gb_per_s"),
      number("save_write_gb_per_s"), number("save_write_of_raw"), number("save_verify_gb_per_s"),
      number("save_s"), number("load_gb_per_s"), number("load_of_raw"), number("copy_s"),
      100 * number("copy_of_save"));
}

}  // namespace

ExitCode bench_checkpoint(const RunConfig& config, Runtime& runtime,
                          const CheckpointBenchOptions& options) {
  const Backend backend = choose_backend(config, runtime);
  const auto all_bytes = options.gib > 0
                             ? static_cast<int64_t>(options.gib * (1 << 30))
                             : state_bytes(count_parameters(config.gpt()).total(), sizeof(float));
  const auto stream = backend.device().make_stream("bench");
  State32 state(*stream, runtime.rank(), all_bytes / runtime.size());

  Control& control = runtime.control();
  const Path directory = Path(options.directory) / "ferry-bench-checkpoint";
  decide_on_root(control, "make the directory", [&] {
    posix_file_system().make_directory(directory);
    return std::string();
  });
  std::vector<Round> rounds;
  try {
    CheckpointBench bench(runtime, state, directory);
    for (int64_t i = 0; i < options.rounds; ++i) rounds.push_back(bench.round());
  } catch (const Error& error) {
    if (runtime.rank() == 0) remove_tree(posix_file_system(), directory);
    throw;
  }
  if (runtime.rank() != 0) return ExitCode::Done;
  remove_tree(posix_file_system(), directory);

  const int64_t bytes = state.bytes() * runtime.size();
  nlohmann::ordered_json row = {
      {"bench", "checkpoint"},    {"config", options.gib > 0 ? "none" : config.run.name},
      {"ranks", runtime.size()},  {"threads", choose_io_threads(state.bytes())},
      {"rounds", options.rounds}, {"bytes", bytes}};
  row.update(row_of(median_of(rounds), static_cast<double>(bytes)));
  add_origin(row, backend.device().name(), options.command);
  if (options.json) {
    std::cout << row.dump() << std::endl;
  } else {
    print_table(row);
  }
  return ExitCode::Done;
}

}  // namespace ferry
