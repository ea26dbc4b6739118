// Attention by cuDNN's graph API. A graph and its plan are made once for each direction, set of
// sizes and device. cuDNN's statistics are the natural logarithm of the sum of exponentials, which
// is what attention.h calls lse.

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <array>
#include <bit>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/check_cuda.h"
#include "core/device_cuda.h"
#include "core/ops/attention_backends_cuda.h"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS)
    fail(ExitCode::Internal, "cuDNN: ", cudnnGetErrorString(status), " from ", call);
}

void check_graph(fe::error_t error, const char* call) {
  if (!error.is_good())
    fail(ExitCode::Internal, "cuDNN attention: ", error.get_message(), " from ", call);
}

// Each thread has a handle per device, since a handle carries the stream. Handles live as long as
// the process: threads may end after the CUDA runtime has.
cudnnHandle_t handle_for(Stream& stream) {
  thread_local std::map<int, cudnnHandle_t> handles;
  CudaStream& cuda = as_cuda(stream);
  cuda.cuda_device().make_current();
  cudnnHandle_t& handle = handles[cuda.handle()->ordinal()];
  if (handle == nullptr) check_cudnn(cudnnCreate(&handle), "cudnnCreate");
  check_cudnn(cudnnSetStream(handle, cuda.handle()->get()), "cudnnSetStream");
  return handle;
}

enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV };

GraphTensor make_tensor(fe::graph::Graph& graph, Uid uid) {
  return graph.tensor(fe::graph::Tensor_attributes().set_uid(uid));
}

// [batch, heads, seq, head_dim], one token's heads side by side in a row of `width` elements.
void set_layout(const GraphTensor& tensor, const AttentionDims& dims, int64_t heads,
                int64_t width) {
  tensor->set_dim({dims.batch, heads, dims.seq, dims.head_dim})
      .set_stride({dims.seq * width, dims.head_dim, width, 1})
      .set_data_type(fe::DataType_t::BFLOAT16);
}

void set_lse_layout(const GraphTensor& tensor, const AttentionDims& dims) {
  tensor->set_dim({dims.batch, dims.heads, dims.seq, 1})
      .set_stride({dims.heads * dims.seq, dims.seq, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

void set_output(const GraphTensor& tensor, Uid uid) { tensor->set_output(true).set_uid(uid); }

struct Plan {
  std::unique_ptr<fe::graph::Graph> graph;  // null if cuDNN has none
  int64_t workspace_bytes = 0;
};

std::unique_ptr<fe::graph::Graph> make_graph() {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

struct Inputs {
  GraphTensor q, k, v;
};

Inputs add_qkv(fe::graph::Graph& graph, const AttentionDims& dims) {
  Inputs inputs{make_tensor(graph, kQ), make_tensor(graph, kK), make_tensor(graph, kV)};
  set_layout(inputs.q, dims, dims.heads, dims.qkv_width());
  set_layout(inputs.k, dims, dims.kv_heads, dims.qkv_width());
  set_layout(inputs.v, dims, dims.kv_heads, dims.qkv_width());
  return inputs;
}

std::unique_ptr<fe::graph::Graph> forward_graph(const AttentionDims& dims, double scale) {
  auto graph = make_graph();
  const Inputs in = add_qkv(*graph, dims);
  auto attributes = fe::graph::SDPA_attributes();
  attributes.set_name("attention")
      .set_generate_stats(true)
      .set_attn_scale(static_cast<float>(scale));
  attributes.set_causal_mask(true);
  const auto [out, lse] = graph->sdpa(in.q, in.k, in.v, attributes);
  set_layout(out, dims, dims.heads, dims.q_width());
  set_output(out, kOut);
  set_lse_layout(lse, dims);
  set_output(lse, kLse);
  return graph;
}

std::unique_ptr<fe::graph::Graph> backward_graph(const AttentionDims& dims, double scale,
                                                 bool deterministic) {
  auto graph = make_graph();
  const Inputs in = add_qkv(*graph, dims);
  const GraphTensor out = make_tensor(*graph, kOut), dout = make_tensor(*graph, kDOut);
  const GraphTensor lse = make_tensor(*graph, kLse);
  set_layout(out, dims, dims.heads, dims.q_width());
  set_layout(dout, dims, dims.heads, dims.q_width());
  set_lse_layout(lse, dims);
  auto attributes = fe::graph::SDPA_backward_attributes();
  attributes.set_name("attention_backward").set_attn_scale(static_cast<float>(scale));
  attributes.set_causal_mask(true).set_deterministic_algorithm(deterministic);
  const auto [dq, dk, dv] = graph->sdpa_backward(in.q, in.k, in.v, out, dout, lse, attributes);
  set_layout(dq, dims, dims.heads, dims.qkv_width());
  set_output(dq, kDQ);
  set_layout(dk, dims, dims.kv_heads, dims.qkv_width());
  set_output(dk, kDK);
  set_layout(dv, dims, dims.kv_heads, dims.qkv_width());
  set_output(dv, kDV);
  return graph;
}

enum class Direction { Forward, Backward };

std::mutex plans_mutex;

// The caller holds plans_mutex.
const Plan& plan_for(cudnnHandle_t handle, int ordinal, Direction direction,
                     const AttentionDims& dims, double scale, bool deterministic) {
  using Key = std::array<int64_t, 9>;
  static std::map<Key, Plan> plans;
  const Key key{ordinal,       static_cast<int64_t>(direction),
                dims.batch,    dims.seq,
                dims.heads,    dims.kv_heads,
                dims.head_dim, std::bit_cast<int64_t>(scale),
                deterministic};
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  Plan plan;
  auto graph = direction == Direction::Forward ? forward_graph(dims, scale)
                                               : backward_graph(dims, scale, deterministic);
  fe::error_t error = graph->build(handle, {fe::HeurMode_t::A});
  if (error.is_good()) {
    check_graph(graph->get_workspace_size(plan.workspace_bytes), "get_workspace_size");
    plan.graph = std::move(graph);
  } else {
    std::fprintf(stderr,
                 "ferry: cuDNN has no attention for head dim %lld, sequences of %lld: a slower "
                 "kernel is used (%s)\n",
                 static_cast<long long>(dims.head_dim), static_cast<long long>(dims.seq),
                 error.get_message().c_str());
  }
  return plans.emplace(key, std::move(plan)).first->second;
}

using Pointers = std::unordered_map<int64_t, void*>;

// The query, key and value heads of a packed tensor.
void add_packed(Pointers& pointers, const Tensor& packed, const AttentionDims& dims, Uid q, Uid k,
                Uid v) {
  auto* first = static_cast<uint16_t*>(packed.raw());  // elements of 16 bits
  pointers[q] = first;
  pointers[k] = first + dims.q_width();
  pointers[v] = first + dims.q_width() + dims.kv_width();
}

void execute(Stream& stream, Direction direction, Pointers& pointers, const AttentionDims& dims,
             double scale, bool deterministic) {
  const cudnnHandle_t handle = handle_for(stream);
  std::lock_guard lock(plans_mutex);
  const Plan& plan =
      plan_for(handle, as_cuda(stream).handle()->ordinal(), direction, dims, scale, deterministic);
  CHECK(plan.graph != nullptr, "cuDNN has no attention for these sizes");
  const Tensor workspace =
      Tensor::empty(stream, "attention workspace", {plan.workspace_bytes}, DType::U8);
  check_graph(plan.graph->execute(handle, pointers, workspace.raw()), "execute");
}

}  // namespace

bool cudnn_attention_supported(Stream& stream, DType dtype, const AttentionDims& dims,
                               double scale) {
  if (dtype != DType::BF16) return false;
  const cudnnHandle_t handle = handle_for(stream);
  const int ordinal = as_cuda(stream).handle()->ordinal();
  std::lock_guard lock(plans_mutex);
  // The direction that is not needed yet is planned too, so that both take the same path.
  return plan_for(handle, ordinal, Direction::Forward, dims, scale, false).graph != nullptr &&
         plan_for(handle, ordinal, Direction::Backward, dims, scale, true).graph != nullptr &&
         plan_for(handle, ordinal, Direction::Backward, dims, scale, false).graph != nullptr;
}

void cudnn_attention_forward(Stream& stream, const Tensor& out, const Tensor& lse,
                             const Tensor& qkv, const AttentionDims& dims, double scale) {
  Pointers pointers{{kOut, out.raw()}, {kLse, lse.raw()}};
  add_packed(pointers, qkv, dims, kQ, kK, kV);
  execute(stream, Direction::Forward, pointers, dims, scale, false);
}

void cudnn_attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout,
                              const Tensor& out, const Tensor& lse, const Tensor& qkv,
                              const AttentionDims& dims, double scale, bool deterministic) {
  Pointers pointers{{kOut, out.raw()}, {kLse, lse.raw()}, {kDOut, dout.raw()}};
  add_packed(pointers, qkv, dims, kQ, kK, kV);
  add_packed(pointers, dqkv, dims, kDQ, kDK, kDV);
  execute(stream, Direction::Backward, pointers, dims, scale, deterministic);
}

}  // namespace ferry::cuda
