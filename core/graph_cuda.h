#pragma once

// CUDA graphs: what a body enqueues on one stream, recorded by stream capture.

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "core/graph.h"
#include "core/memory_cuda.h"
#include "core/stream_cuda.h"

namespace ferry {

class CudaGraph final : public Graph {
 public:
  /// Runs `body`, whose work on `stream` is recorded and not done. See capture().
  CudaGraph(CudaStream& stream, const std::function<void()>& body, Unreleased unreleased);
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void launch(Stream& stream) override;
  int64_t num_nodes() const override { return num_nodes_; }

 private:
  void record(const std::function<void()>& body);
  void check_nodes(Unreleased unreleased);
  void instantiate(Unreleased unreleased);
  void destroy() noexcept;
  void return_host_memory() noexcept;

  CudaStream& stream_;
  cudaGraph_t graph_ = nullptr;  // lives as long as what was made of it, since it has allocations
  cudaGraphExec_t executable_ = nullptr;
  std::vector<PinnedPool::Block> host_memory_;  // that the body used and let go
  int64_t num_nodes_ = 0;
};

}  // namespace ferry
