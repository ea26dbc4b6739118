#include "core/stream_cuda.h"

#include <cudaTypedefs.h>

#include <atomic>

#include "core/check.h"
#include "core/check_cuda.h"
#include "core/device_cuda.h"
#include "core/small_copy_cuda.h"
#include "core/stream_cpu.h"
#include "core/wait.h"

namespace ferry {
namespace {

// A function of the driver that is loaded, so that no program links against the driver's library.
void* driver_function(const char* name) {
  void* pointer = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &pointer, 11070, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || pointer == nullptr)
    fail(ExitCode::Resource, "the NVIDIA driver has no ", name,
         ": install one for CUDA 12 or newer");
  return pointer;
}

PFN_cuStreamWaitValue32_v11070 stream_wait_value() {
  static const auto function =
      reinterpret_cast<PFN_cuStreamWaitValue32_v11070>(driver_function("cuStreamWaitValue32"));
  return function;
}

PFN_cuStreamWriteValue32_v11070 stream_write_value() {
  static const auto function =
      reinterpret_cast<PFN_cuStreamWriteValue32_v11070>(driver_function("cuStreamWriteValue32"));
  return function;
}

// A number in pinned memory through which a stream and a thread of the host tell each other.
struct Flag {
  explicit Flag(Device& device) : memory(Tensor::host(device, "event flags", {1}, DType::I32)) {
    set(0);
  }
  void set(int32_t value) const { number().store(value, std::memory_order_seq_cst); }
  bool is_set() const { return number().load(std::memory_order_seq_cst) != 0; }
  CUdeviceptr on_device() const {
    void* pointer = nullptr;
    CUDA_CHECK(cudaHostGetDevicePointer(&pointer, memory.raw(), 0));
    return reinterpret_cast<CUdeviceptr>(pointer);
  }

  Tensor memory;

 private:
  std::atomic_ref<int32_t> number() const { return std::atomic_ref(*memory.data<int32_t>()); }
};

// An event that the GPU writes to host memory.
class FlagEvent final : public EventState {
 public:
  FlagEvent(Flag flag, std::shared_ptr<HostFailure> failure)
      : flag_(std::move(flag)), failure_(std::move(failure)) {}
  bool ready() const override { return flag_.is_set(); }
  void wait_host() const override {
    wait_until_ready(concat("stream '", failure_->stream(), "'"), [this] { return ready(); });
    failure_->rethrow();
  }

 private:
  Flag flag_;
  std::shared_ptr<HostFailure> failure_;
};

// An event with a time. Made anew for each stamp: they are few.
class CudaTimeStamp final : public TimeStamp {
 public:
  CudaTimeStamp(cudaStream_t stream, std::string name) : name_(std::move(name)) {
    CUDA_CHECK(cudaEventCreate(&event_));
    const cudaError_t error = cudaEventRecord(event_, stream);
    if (error != cudaSuccess) CUDA_CHECK_NOTHROW(cudaEventDestroy(event_));
    CUDA_CHECK(error);
  }
  ~CudaTimeStamp() override { CUDA_CHECK_NOTHROW(cudaEventDestroy(event_)); }
  CudaTimeStamp(const CudaTimeStamp&) = delete;
  CudaTimeStamp& operator=(const CudaTimeStamp&) = delete;

  double seconds_since(const TimeStamp& earlier) const override {
    const auto* start = dynamic_cast<const CudaTimeStamp*>(&earlier);
    CHECK(start != nullptr, "stamps of two kinds of devices");
    start->wait();
    wait();
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start->event_, event_));
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  void wait() const {
    wait_until_ready(concat("stream '", name_, "'"), [this] {
      const cudaError_t error = cudaEventQuery(event_);
      if (error == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
      return error != cudaErrorNotReady;
    });
    CUDA_CHECK(cudaEventQuery(event_));
  }

  std::string name_;
  cudaEvent_t event_ = nullptr;
};

bool captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void used_until(const Tensor& tensor, CudaStream& stream, const std::shared_ptr<CudaEvent>& event) {
  if (auto* storage = dynamic_cast<CudaStorage*>(tensor.storage().get()))
    storage->used_until(stream, event);
}

}  // namespace

CudaStreamHandle::CudaStreamHandle(int ordinal) : ordinal_(ordinal) {
  CUDA_CHECK(cudaSetDevice(ordinal));
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaStreamHandle::~CudaStreamHandle() { CUDA_CHECK_NOTHROW(cudaStreamDestroy(stream_)); }

void HostFailure::set(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
}

void HostFailure::rethrow() const {
  std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

CudaEventPool::~CudaEventPool() {
  for (cudaEvent_t event : free_) CUDA_CHECK_NOTHROW(cudaEventDestroy(event));
}

cudaEvent_t CudaEventPool::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  CUDA_CHECK(cudaSetDevice(ordinal_));
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void CudaEventPool::give_back(cudaEvent_t event) noexcept {
  std::lock_guard lock(mutex_);
  free_.push_back(event);
}

CudaEvent::CudaEvent(std::shared_ptr<CudaEventPool> pool, cudaStream_t stream,
                     std::shared_ptr<HostFailure> failure)
    : pool_(std::move(pool)),
      failure_(std::move(failure)),
      event_(pool_->take()),
      is_captured_(captures(stream)) {
  const cudaError_t error = cudaEventRecord(event_, stream);
  if (error == cudaSuccess) return;
  pool_->give_back(event_);
  CUDA_CHECK(error);
}

CudaEvent::~CudaEvent() { pool_->give_back(event_); }

bool CudaEvent::ready() const {
  CHECK(!is_captured_, "an event of a graph of stream '", failure_->stream(),
        "' is asked whether it is ready: its work is recorded, not done");
  const cudaError_t error = cudaEventQuery(event_);
  if (error != cudaErrorNotReady) return true;
  // "Not ready" counts as an error of this thread until it is read.
  static_cast<void>(cudaGetLastError());
  return false;
}

void CudaEvent::wait_host() const {
  // The driver's own wait has no limit, and would not notice that a peer of NCCL is gone.
  wait_until_ready(concat("stream '", failure_->stream(), "'"), [this] { return ready(); });
  CUDA_CHECK(cudaEventQuery(event_));
  failure_->rethrow();
}

CudaStream::CudaStream(CudaDevice& device, std::string name)
    : Stream(device, std::move(name)),
      device_(device),
      handle_(std::make_shared<CudaStreamHandle>(device.ordinal())),
      failure_(std::make_shared<HostFailure>(this->name())) {}

bool CudaStream::is_captured() const { return captures(handle_->get()); }

Event CudaStream::record() {
  device_.make_current();
  return Event(std::make_shared<CudaEvent>(device_.events(), handle_->get(), failure_));
}

void CudaStream::wait(const Event& event) {
  if (!event.state()) return;
  device_.make_current();
  if (const auto* cuda = dynamic_cast<const CudaEvent*>(event.state().get())) {
    CUDA_CHECK(cudaStreamWaitEvent(handle_->get(), cuda->get(), 0));
    return;
  }
  const auto host = std::dynamic_pointer_cast<HostEvent>(event.state());
  CHECK(host != nullptr, "stream '", name(), "' cannot wait for this kind of event");
  if (host->ready()) {
    host->wait_host();  // throws the error of the work before it
    return;
  }
  // The flag's memory is reused only after this stream has passed it (used_until) and the CPU
  // stream has set it (the callback's copy). The callback's thread calls nothing of the driver.
  const Flag flag(device_);
  CUDA_DRIVER_CHECK(
      stream_wait_value()(handle_->get(), flag.on_device(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  used_until(flag.memory, *this,
             std::make_shared<CudaEvent>(device_.events(), handle_->get(), failure_));
  host->on_ready([flag, host, failure = failure_] {
    try {
      host->wait_host();
    } catch (...) {
      failure->set(std::current_exception());
    }
    flag.set(1);
  });
}

Event CudaStream::record_for_host() {
  device_.make_current();
  const Flag flag(device_);
  CUDA_DRIVER_CHECK(
      stream_write_value()(handle_->get(), flag.on_device(), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  used_until(flag.memory, *this,
             std::make_shared<CudaEvent>(device_.events(), handle_->get(), failure_));
  return Event(std::make_shared<FlagEvent>(flag, failure_));
}

std::shared_ptr<const TimeStamp> CudaStream::stamp() {
  device_.make_current();
  CHECK(!is_captured(), "a time of stream '", name(), "', whose work is recorded and not done");
  return std::make_shared<CudaTimeStamp>(handle_->get(), name());
}

void CudaStream::synchronize() { record().wait_host(); }

void CudaStream::zero(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  device_.make_current();
  CUDA_CHECK(cudaMemsetAsync(tensor.raw(), 0, static_cast<size_t>(tensor.bytes()), handle_->get()));
}

void CudaStream::copy(const Tensor& to, const Tensor& from) {
  CHECK(to.dtype() == from.dtype() && to.numel() == from.numel(), "copy of ", from.shape(), " ",
        name_of(from.dtype()), " to ", to.shape(), " ", name_of(to.dtype()));
  if (to.numel() == 0) return;
  device_.make_current();
  const auto is_pinned = [](const Tensor& tensor) {
    return tensor.on_host() && dynamic_cast<CudaStorage*>(tensor.storage().get()) != nullptr;
  };
  if (to.bytes() <= kSmallCopyBytes && is_pinned(to) && !from.on_host()) {
    copy_small_to_host(to.raw(), from.raw(), to.bytes(), handle_->get());
  } else {
    CUDA_CHECK(cudaMemcpyAsync(to.raw(), from.raw(), static_cast<size_t>(to.bytes()),
                               cudaMemcpyDefault, handle_->get()));
  }
  // An event of this copy, and not of what comes later here, so that memory that was copied away
  // is free as soon as possible.
  const auto done = std::make_shared<CudaEvent>(device_.events(), handle_->get(), failure_);
  used_until(to, *this, done);
  used_until(from, *this, done);
}

void CudaStream::hold(const Tensor& tensor) {
  if (tensor.defined()) tensor.storage()->used_on(*this);
}

void CudaStream::hold_until(const Tensor& tensor, const Event& event) {
  const auto point = std::dynamic_pointer_cast<CudaEvent>(event.state());
  CHECK(point != nullptr, "stream '", name(), "': an event of another kind of stream");
  used_until(tensor, *this, point);
}

const Tensor& CudaStream::blas_workspace() {
  if (!blas_workspace_.defined())
    blas_workspace_ = Tensor::empty(*this, "cublas workspace", {kBlasWorkspaceBytes}, DType::U8);
  return blas_workspace_;
}

const Tensor& CudaStream::zeroed_counters() {
  if (!zeroed_counters_.defined()) {
    zeroed_counters_ = Tensor::empty(*this, "counters", {2}, DType::I32);
    zero(zeroed_counters_);
  }
  return zeroed_counters_;
}

CudaStream& as_cuda(Stream& stream) {
  CHECK(stream.device().kind() == DeviceKind::Cuda, "stream '", stream.name(),
        "' is not a CUDA stream");
  return static_cast<CudaStream&>(stream);
}

cudaStream_t cuda_handle(Stream& stream) {
  CudaStream& cuda = as_cuda(stream);
  cuda.cuda_device().make_current();
  return cuda.handle()->get();
}

cublasLtHandle_t cublaslt_handle(Stream& stream) {
  return as_cuda(stream).cuda_device().cublaslt();
}

int num_multiprocessors(Stream& stream) {
  return as_cuda(stream).cuda_device().num_multiprocessors();
}

}  // namespace ferry
