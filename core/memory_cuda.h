#pragma once

// Memory of a GPU, and pinned host memory, that is reused only when the streams that hold it are
// done with it. The host never waits for a stream here.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/stream_cuda.h"

namespace ferry {

/// Memory that CUDA streams use. Knows which, and until when.
class CudaStorage : public Storage {
 public:
  /// Conservative: in use on `stream` until all that is enqueued there before the release is done.
  void used_on(Stream& stream) override;
  /// In use on `stream` until `event` of that stream.
  void used_until(CudaStream& stream, const std::shared_ptr<CudaEvent>& event);

 protected:
  CudaStorage(CudaDevice& device, void* data, int64_t bytes, bool host,
              std::shared_ptr<CudaStreamHandle> owner);
  /// Events after which no holder uses the memory any more; called once, at the release.
  std::vector<std::shared_ptr<CudaEvent>> last_uses();

  CudaDevice& device_;
  std::shared_ptr<CudaStreamHandle> owner_;  // null for pinned memory

 private:
  struct Use {
    std::shared_ptr<CudaStreamHandle> stream;
    std::shared_ptr<CudaEvent> until;  // null: until the release
  };
  void add_use(const std::shared_ptr<CudaStreamHandle>& stream, std::shared_ptr<CudaEvent> until);

  std::mutex mutex_;
  std::vector<Use> uses_;
};

/// Stream-ordered device memory (cudaMallocAsync).
std::shared_ptr<Storage> allocate_cuda(CudaDevice& device, CudaStream& stream,
                                       std::string_view name, int64_t bytes);

/// Pinned blocks by size class. A block returns with the events of its last uses and is handed out
/// again when they are done; otherwise another block is made.
class PinnedPool {
 public:
  explicit PinnedPool(int ordinal) : ordinal_(ordinal) {}
  ~PinnedPool();

  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;  // of its size class
    std::vector<std::shared_ptr<CudaEvent>> pending;
    bool ready() const;
    /// Its last use is work that becomes a graph.
    bool is_captured() const;
  };
  /// A block of at least `bytes`; data is null if the host has not enough memory.
  Block take(int64_t bytes);
  void give_back(Block block);
  /// The blocks given back since the last call that a capture used: each launch of its graph will
  /// use them again, so they are the graph's until it gives them back.
  std::vector<Block> take_captured();

  /// Requests are rounded up by at most an eighth, and to 4 KiB at least.
  static int64_t size_class(int64_t bytes);

 private:
  void free_idle_blocks();

  int ordinal_;
  std::mutex mutex_;
  std::map<int64_t, std::vector<Block>> idle_;
  std::vector<Block> captured_;
};

std::shared_ptr<Storage> allocate_pinned(CudaDevice& device, std::string_view name, int64_t bytes);

}  // namespace ferry
