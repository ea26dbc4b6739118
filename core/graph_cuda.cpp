#include "core/graph_cuda.h"

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/check_cuda.h"
#include "core/device_cuda.h"

namespace ferry {

CudaGraph::CudaGraph(CudaStream& stream, const std::function<void()>& body, Unreleased unreleased)
    : stream_(stream) {
  try {
    record(body);
    check_nodes(unreleased);
    instantiate(unreleased);
  } catch (...) {
    destroy();
    throw;
  }
}

CudaGraph::~CudaGraph() { destroy(); }

void CudaGraph::destroy() noexcept {
  // A graph that is running ends first: the driver keeps it until then.
  if (executable_ != nullptr) CUDA_CHECK_NOTHROW(cudaGraphExecDestroy(executable_));
  if (graph_ != nullptr) CUDA_CHECK_NOTHROW(cudaGraphDestroy(graph_));
  executable_ = nullptr;
  graph_ = nullptr;
  return_host_memory();
}

// The last launch may still use it.
void CudaGraph::return_host_memory() noexcept {
  if (host_memory_.empty()) return;
  try {
    CudaDevice& device = stream_.cuda_device();
    const Event now = stream_.record();
    for (PinnedPool::Block& block : host_memory_) {
      block.pending = {std::dynamic_pointer_cast<CudaEvent>(now.state())};
      device.pinned_pool().give_back(std::move(block));
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "ferry: %s\n", error.what());
  }
  host_memory_.clear();
}

void CudaGraph::record(const std::function<void()>& body) {
  stream_.cuda_device().make_current();
  const cudaStream_t handle = stream_.handle()->get();
  // Relaxed: other threads (savers, loaders, NCCL's) go on calling the driver meanwhile.
  CUDA_CHECK(cudaStreamBeginCapture(handle, cudaStreamCaptureModeRelaxed));
  PinnedPool& pinned = stream_.cuda_device().pinned_pool();
  try {
    body();
  } catch (...) {
    // Else the stream would stay unusable, and hide the error. A capture that failed has no graph.
    static_cast<void>(cudaStreamEndCapture(handle, &graph_));
    static_cast<void>(cudaGetLastError());
    host_memory_ = pinned.take_captured();
    throw;
  }
  host_memory_ = pinned.take_captured();
  stream_.cuda_device().make_current();
  CUDA_CHECK(cudaStreamEndCapture(handle, &graph_));
  CHECK(graph_ != nullptr, "the capture of stream '", stream_.name(), "' made no graph");
}

// What the body allocates is memory of the graph, so it must be released there, too: a tensor that
// outlives the body would have no memory between launches.
void CudaGraph::check_nodes(Unreleased unreleased) {
  size_t count = 0;
  CUDA_CHECK(cudaGraphGetNodes(graph_, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) CUDA_CHECK(cudaGraphGetNodes(graph_, nodes.data(), &count));
  int64_t allocations = 0, releases = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    allocations += type == cudaGraphNodeTypeMemAlloc;
    releases += type == cudaGraphNodeTypeMemFree;
  }
  num_nodes_ = static_cast<int64_t>(count);
  CHECK(unreleased == Unreleased::Kept || allocations == releases, "a graph of stream '",
        stream_.name(), "' allocates ", allocations, " tensors and releases ", releases);
}

void CudaGraph::instantiate(Unreleased unreleased) {
  // The graph has memory of its own: what the pool keeps of the same work would be held twice.
  stream_.cuda_device().release_unused_memory();
  // What the last launch left allocated, the next one allocates again at the same place.
  const unsigned flags =
      unreleased == Unreleased::Kept ? unsigned{cudaGraphInstantiateFlagAutoFreeOnLaunch} : 0;
  CUDA_CHECK(cudaGraphInstantiate(&executable_, graph_, flags));
}

void CudaGraph::launch(Stream& stream) {
  CHECK(&stream == &stream_, "a graph of stream '", stream_.name(), "' is launched on '",
        stream.name(), "'");
  CudaDevice& device = stream_.cuda_device();
  device.make_current();
  const cudaStream_t handle = stream_.handle()->get();
  cudaError_t error = cudaGraphLaunch(executable_, handle);
  if (error == cudaErrorMemoryAllocation) {
    // Work between launches may have filled the pool again.
    static_cast<void>(cudaGetLastError());
    device.release_unused_memory();
    error = cudaGraphLaunch(executable_, handle);
  }
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    fail(ExitCode::Resource, "not enough memory on ", device.name(),
         " for what a graph of stream '", stream_.name(), "' allocates: ", device.free_bytes(),
         " of ", device.total_bytes(), " bytes are free and ", device.memory().current(),
         " are held by this rank besides:\n", CudaDevice::table_text(device.memory()),
         "Lower the micro-batch, turn on recompute, or use cuda_graph.impl=none");
  }
  CUDA_CHECK(error);
}

std::unique_ptr<Graph> capture_cuda(Stream& stream, const std::function<void()>& body,
                                    Unreleased unreleased) {
  return std::make_unique<CudaGraph>(as_cuda(stream), body, unreleased);
}

}  // namespace ferry
