#include "core/memory_cuda.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "core/check_cuda.h"
#include "core/device_cuda.h"

namespace ferry {
namespace {

class DeviceStorage final : public CudaStorage {
 public:
  DeviceStorage(CudaDevice& device, void* data, int64_t bytes, std::string_view name,
                std::shared_ptr<CudaStreamHandle> owner)
      : CudaStorage(device, data, bytes, false, std::move(owner)), name_(name) {
    device_.memory().add(name_, bytes);
  }
  ~DeviceStorage() override {
    device_.memory().remove(name_, bytes());
    CUDA_CHECK_NOTHROW(cudaSetDevice(device_.ordinal()));
    for (const auto& event : last_uses())
      CUDA_CHECK_NOTHROW(cudaStreamWaitEvent(owner_->get(), event->get(), 0));
    CUDA_CHECK_NOTHROW(cudaFreeAsync(data(), owner_->get()));
  }

 private:
  std::string name_;
};

class PinnedStorage final : public CudaStorage {
 public:
  PinnedStorage(CudaDevice& device, PinnedPool::Block block, int64_t bytes, std::string_view name)
      : CudaStorage(device, block.data, bytes, true, nullptr),
        name_(name),
        block_(std::move(block)) {
    device_.pinned_memory().add(name_, bytes);
  }
  ~PinnedStorage() override {
    device_.pinned_memory().remove(name_, bytes());
    block_.pending = last_uses();
    device_.pinned_pool().give_back(std::move(block_));
  }

 private:
  std::string name_;
  PinnedPool::Block block_;
};

}  // namespace

CudaStorage::CudaStorage(CudaDevice& device, void* data, int64_t bytes, bool host,
                         std::shared_ptr<CudaStreamHandle> owner)
    : Storage(data, bytes, host), device_(device), owner_(std::move(owner)) {}

void CudaStorage::used_on(Stream& stream) {
  // Tasks of CPU streams own the tensors they use.
  if (stream.device().kind() == DeviceKind::Cuda) add_use(as_cuda(stream).handle(), nullptr);
}

void CudaStorage::used_until(CudaStream& stream, const std::shared_ptr<CudaEvent>& event) {
  add_use(stream.handle(), event);
}

void CudaStorage::add_use(const std::shared_ptr<CudaStreamHandle>& stream,
                          std::shared_ptr<CudaEvent> until) {
  if (stream == owner_) return;  // the release is in that stream's order anyway
  std::lock_guard lock(mutex_);
  for (Use& use : uses_) {
    if (use.stream != stream) continue;
    if (use.until) use.until = std::move(until);  // later in the same stream, so it covers both
    return;
  }
  uses_.push_back({stream, std::move(until)});
}

std::vector<std::shared_ptr<CudaEvent>> CudaStorage::last_uses() {
  std::vector<std::shared_ptr<CudaEvent>> events;
  for (Use& use : uses_) {
    if (!use.until) {
      // Called from destructors: a stream that cannot record has failed, and so has the process.
      try {
        CUDA_CHECK(cudaSetDevice(use.stream->ordinal()));
        use.until = std::make_shared<CudaEvent>(device_.events(), use.stream->get(),
                                                std::make_shared<HostFailure>());
      } catch (const Error& error) {
        std::fprintf(stderr, "ferry: %s\n", error.what());
        continue;
      }
    }
    events.push_back(std::move(use.until));
  }
  uses_.clear();
  if (owner_ != nullptr) CUDA_CHECK_NOTHROW(cudaSetDevice(owner_->ordinal()));
  return events;
}

std::shared_ptr<Storage> allocate_cuda(CudaDevice& device, CudaStream& stream,
                                       std::string_view name, int64_t bytes) {
  device.make_current();
  const cudaStream_t handle = stream.handle()->get();
  const size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* data = nullptr;
  cudaError_t error = cudaMallocAsync(&data, size, handle);
  if (error == cudaErrorMemoryAllocation && !stream.is_captured()) {
    // Memory may be on its way back: wait for it once before giving up.
    static_cast<void>(cudaGetLastError());
    device.release_unused_memory();
    error = cudaMallocAsync(&data, size, handle);
  }
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    fail(ExitCode::Resource, "not enough memory on ", device.name(), ": '", name, "' needs ", bytes,
         " bytes, ", device.free_bytes(), " of ", device.total_bytes(), " are free and ",
         device.memory().current(), " are held by this rank:\n",
         CudaDevice::table_text(device.memory()),
         "Lower the micro-batch, or turn on recompute or offload");
  }
  CUDA_CHECK(error);
  std::shared_ptr<Storage> storage =
      std::make_shared<DeviceStorage>(device, data, bytes, name, stream.handle());
  if (device.poison_memory()) CUDA_CHECK(cudaMemsetAsync(data, 0xff, size, handle));
  return storage;
}

PinnedPool::~PinnedPool() {
  CUDA_CHECK_NOTHROW(cudaSetDevice(ordinal_));
  CUDA_CHECK_NOTHROW(cudaDeviceSynchronize());
  free_idle_blocks();
}

void PinnedPool::free_idle_blocks() {
  std::vector<Block> unused;
  {
    std::lock_guard lock(mutex_);
    for (auto& [bytes, blocks] : idle_) {
      const auto first = std::partition(blocks.begin(), blocks.end(),
                                        [](const Block& block) { return !block.ready(); });
      std::move(first, blocks.end(), std::back_inserter(unused));
      blocks.erase(first, blocks.end());
    }
  }
  // Not under the lock: cudaFreeHost may wait for the device, which may wait for a thread that
  // gives a block back.
  for (const Block& block : unused) CUDA_CHECK_NOTHROW(cudaFreeHost(block.data));
}

bool PinnedPool::Block::ready() const {
  return std::all_of(pending.begin(), pending.end(),
                     [](const auto& event) { return event->ready(); });
}

int64_t PinnedPool::size_class(int64_t bytes) {
  constexpr int64_t kSmallest = 4096;
  if (bytes <= kSmallest) return kSmallest;
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes - 1))) / 8;
  return (bytes + step - 1) / step * step;
}

PinnedPool::Block PinnedPool::take(int64_t bytes) {
  const int64_t size = size_class(bytes);
  {
    std::lock_guard lock(mutex_);
    std::vector<Block>& blocks = idle_[size];
    const auto found = std::find_if(blocks.begin(), blocks.end(),
                                    [](const Block& block) { return block.ready(); });
    if (found != blocks.end()) {
      Block block = std::move(*found);
      blocks.erase(found);
      block.pending.clear();
      return block;
    }
  }
  CUDA_CHECK(cudaSetDevice(ordinal_));
  Block block{nullptr, size, {}};
  cudaError_t error = cudaHostAlloc(&block.data, static_cast<size_t>(size), cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    free_idle_blocks();
    error = cudaHostAlloc(&block.data, static_cast<size_t>(size), cudaHostAllocPortable);
  }
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  CUDA_CHECK(error);
  return block;
}

bool PinnedPool::Block::is_captured() const {
  return std::any_of(pending.begin(), pending.end(),
                     [](const auto& event) { return event->is_captured(); });
}

void PinnedPool::give_back(Block block) {
  std::lock_guard lock(mutex_);
  std::vector<Block>& blocks = block.is_captured() ? captured_ : idle_[block.bytes];
  blocks.push_back(std::move(block));
}

std::vector<PinnedPool::Block> PinnedPool::take_captured() {
  std::lock_guard lock(mutex_);
  return std::exchange(captured_, {});
}

std::shared_ptr<Storage> allocate_pinned(CudaDevice& device, std::string_view name, int64_t bytes) {
  PinnedPool::Block block = device.pinned_pool().take(bytes);
  if (block.data == nullptr)
    fail(ExitCode::Resource, "not enough host memory that can be pinned for ", device.name(), ": '",
         name, "' needs ", bytes, " bytes and ", device.pinned_memory().current(),
         " are held by this rank:\n", CudaDevice::table_text(device.pinned_memory()),
         "Offload less, or raise the memory limit (ulimit -l) of the job");
  if (device.poison_memory())
    std::memset(block.data, 0xff, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  return std::make_shared<PinnedStorage>(device, std::move(block), bytes, name);
}

}  // namespace ferry
