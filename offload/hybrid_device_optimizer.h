#pragma once

// HybridDeviceOptimizer: the state store that keeps a part of the optimizer's state in host memory
// and updates that part on the CPU (Megatron-LM's feature of this name; J. Ren et al.,
// ZeRO-Offload, 2021). Numbers are those of DeviceStateStore, bit for bit, for every fraction.
//
// With overlap, three things run at once: gradients go to the host as soon as they are final, on a
// stream of their own, during the last backward already; threads of the host update chunk after
// chunk, first those that the next forward needs first, if they have arrived; and new values go to
// the device on another stream, so that the next forward starts when the first block's are there.
// Without, the chunks go through all three one by one before update() returns.
//
// What protects what
//   gradients on the device   begin_step: zeroing waits for the copies to the host
//   gradients on the host     a chunk's memory is new in each step, so a gradient that did not come
//                             cannot be an old one; update() sends what gradients_final() did not
//   values on the device      copies wait for all work enqueued before update()
//   a step that is not made   what was sent is dropped; the state was not touched

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/stream_cpu.h"
#include "core/worker_pool.h"
#include "offload/optimizer_partition.h"
#include "optim/state_store.h"

namespace ferry {

struct HybridSettings {
  double fraction = 1.0;
  HostPart part = HostPart::First;
  bool overlap = false;
  bool pin_gradients = true;  // page-locked host memory for copies of gradients
  bool pin_values = true;     // and for new values
  int num_threads = 1;        // of the update on the host
  MomentTypes moment_types;   // on the device; the host's are of full precision always
  int64_t chunk_elements = int64_t{16} << 20;
};

/// What the last update that is done took, in seconds; the parts run at once with overlap.
struct UpdateTimes {
  double d2h = 0;         // copies of gradients, without waiting
  double cpu_update = 0;  // the host's threads
  double h2d = 0;         // copies of values, without waiting
  double exposed = 0;     // streams that waited for copies, since the end of the work before
  double wall = 0;        // from update() to the last value
  int64_t d2h_bytes = 0;
  int64_t h2d_bytes = 0;
  int64_t host_elements = 0;
};

class HybridDeviceOptimizer final : public StateStore {
 public:
  /// Chunks of values that may be on their way to the device at once: it takes them faster than
  /// they are made.
  static constexpr size_t kMaxReturning = 4;

  /// `blocks`: the parameters that this rank updates (shards, or all), by block in the order of
  /// forward; they, the rule and the device outlive this. `stream`: of the parameters' device, on
  /// which their values are ready. Allocates everything, also the host memory of copies, so that
  /// what does not fit fails here: Error(ExitCode::Resource).
  HybridDeviceOptimizer(Stream& stream, std::vector<std::vector<Parameter*>> blocks,
                        const UpdateRule& rule, const HybridSettings& settings);

  const ParameterState& state(const Parameter& parameter) override;
  void publish(Stream& stream, const Parameter& parameter) override;
  void begin_step(Stream& stream) override;
  void gradients_final(int block, ReduceAxis axis, const Event& final) override;
  void update(Stream& stream, const UpdateRule& rule, const UpdateScalars& scalars) override;
  void wait_values(Stream& stream, int block) override;
  void wait_all_values(Stream& stream) override;
  bool updates_later() const override { return settings_.overlap; }
  void set_guard(std::shared_ptr<CopyOnWrite> guard) override;
  bool is_guarded(const Parameter& parameter) const override { return on_host(parameter); }

  /// Moves state so that the host has this fraction from now on. Between steps. Waits for it, and
  /// before that for the guard's reader.
  void set_fraction(Stream& stream, double fraction);
  double fraction() const { return settings_.fraction; }
  std::vector<OptimizerPlace> places() const;
  std::vector<const Parameter*> parameters() const;
  /// What the parameter's state takes, or would, on the device: no master where the value is it.
  int64_t device_state_bytes(const Parameter& parameter) const;
  int num_threads() const { return workers_.num_threads(); }

  /// Of the last update that is done: with overlap, the one that the last forward waited for.
  UpdateTimes times() const { return last_times_; }
  /// State in host memory: masters and moments.
  MemoryLedger& host_memory() { return host_->memory(); }

 private:
  // A part of a parameter that is updated at once.
  struct Piece {
    Parameter* parameter;
    int64_t begin, end;    // of the flat parameter
    int64_t offset;        // in the host memory of its chunk
    ParameterState state;  // flat, of these elements
  };
  // What is copied and updated together: small parameters of a block, or a part of a large one.
  struct Chunk {
    size_t block;
    ReduceAxis axis;
    DType dtype;  // of the values
    std::vector<Piece> pieces;
    int64_t elements = 0;  // of its host memory
    Tensor gradients;      // on the host; undefined until they are sent
    Event arrived;         // they have
    int64_t sequence = 0;  // of their copies
  };
  // The part of an update that a chunk is.
  struct Job {
    const Chunk* chunk;
    Tensor gradients;
    Event arrived;
    int64_t sequence;
    std::vector<Tensor> values;  // of its pieces, on the device
  };
  struct Span {
    std::shared_ptr<const TimeStamp> begin, end;
  };
  // What tells of an update, until it is read.
  struct Times {
    std::vector<Span> d2h, h2d, waits;
    double cpu_update = 0;
    double wall = 0;
    int64_t d2h_bytes = 0, h2d_bytes = 0;
  };
  // Values of a block on their way.
  struct Block {
    std::shared_ptr<HostEvent> enqueued;  // null: none, or waited for
    Event on_device;                      // valid after it
  };

  // Elements [begin, end) of a tensor that counts as flat.
  static Tensor part(const Tensor& tensor, int64_t begin, int64_t end) {
    return tensor.reshape({tensor.numel()}).rows(begin, end);
  }

  bool on_host(const Parameter& parameter) const { return on_host_.at(&parameter); }
  void choose_places();
  ParameterState make_host_state(Stream& stream, const Parameter& parameter);
  void move(Stream& stream, const Parameter& parameter, bool to_host);
  void make_chunks();
  void add_to_chunks(size_t block, Parameter& parameter);
  void reserve();

  Tensor host_buffer(std::string_view name, int64_t elements, DType dtype, bool pinned);
  void send(Chunk& chunk);
  Job take_job(Chunk& chunk);
  void run(std::vector<Job> jobs, const UpdateScalars& scalars);
  size_t next_job(const std::vector<Job>& jobs) const;
  Tensor update_on_host(const Job& job, const UpdateScalars& scalars);
  void return_values(const Job& job, const Tensor& values);
  void finish_update();

  HybridSettings settings_;
  std::vector<std::vector<Parameter*>> parameters_;  // by block
  const UpdateRule& rule_;
  Device& device_;
  std::unique_ptr<Device> host_;  // pageable memory of the host
  std::unique_ptr<Stream> host_stream_;
  WorkerPool workers_;
  std::map<const Parameter*, bool> on_host_;
  std::map<const Parameter*, ParameterState> states_;
  std::shared_ptr<CopyOnWrite> guard_;  // null: nobody reads while states change

  std::unique_ptr<Stream> to_host_, to_device_;
  std::vector<Chunk> chunks_;  // in the order of forward, but tied parameters first
  int64_t num_sent_ = 0;
  std::vector<Span> sent_;  // of the step under way
  int64_t sent_bytes_ = 0;
  std::vector<Block> blocks_;
  std::deque<Event> returning_;  // copies of values under way
  std::optional<Times> times_;   // of the update under way
  UpdateTimes last_times_;
  // Its thread leads the host's part of an update, and uses all of the above: it ends first.
  std::unique_ptr<Stream> updates_;
};

}  // namespace ferry
