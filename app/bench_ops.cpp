#include <fmt/format.h>

#include <numeric>

#include "app/bench.h"
#include "core/host_copy.h"
#include "core/ops/adamw.h"
#include "core/ops/attention.h"
#include "core/ops/elementwise.h"
#include "core/ops/gemm.h"
#include "core/ops/grouped_gemm.h"
#include "core/ops/permute.h"
#include "core/ops/rmsnorm.h"
#include "core/ops/swiglu.h"
#include "core/ops/topk_gate.h"

namespace ferry {
namespace {

// Makes operands of one configuration and collects rows.
class OpsBench {
 public:
  OpsBench(Stream& stream, const RunConfig& config)
      : stream_(stream),
        model_(config.model),
        moe_(config.moe),
        dtype_(dtype_of(config.model.precision)),
        tokens_(config.batch.micro * config.model.seq),
        copy_ceiling_(measure_copy_ceiling(stream)),
        gemm_ceiling_(measure_gemm_ceiling(stream, dtype_)) {}

  std::vector<BenchRow> run() {
    dense();
    attention();
    memory_bound();
    if (moe_.experts > 0) experts();
    return std::move(rows_);
  }

 private:
  Tensor random(const Shape& shape, DType dtype) {
    const Tensor tensor = Tensor::empty(stream_, "bench", shape, dtype);
    fill_normal(stream_, tensor, 1.0, {1, 0, ++site_}, 0);
    return tensor;
  }
  Tensor random(const Shape& shape) { return random(shape, dtype_); }
  Tensor output(const Shape& shape, DType dtype) {
    return Tensor::empty(stream_, "bench", shape, dtype);
  }
  Tensor output(const Shape& shape) { return output(shape, dtype_); }

  void row(const std::string& name, const std::string& shape, double bytes, double flops,
           const std::function<void()>& call) {
    BenchRow made{"ops", name, shape};
    const CallTimes times = time_calls(stream_, call);
    made.seconds = times.median;
    made.fastest_seconds = times.fastest;
    made.bytes = bytes;
    made.flops = flops;
    made.ceiling = flops > 0 ? gemm_ceiling_ : copy_ceiling_;
    rows_.push_back(made);
  }

  void product(const std::string& name, int64_t m, int64_t n, int64_t k) {
    const Tensor a = random({m, k}), b = random({n, k}), c = output({m, n});
    const Tensor weight_gradient = random({n, k}, accumulate_dtype(dtype_));
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
    const std::string shape = fmt::format("{} x {} x {}", m, n, k);
    row(name + " forward", shape, 0, flops,
        [&] { gemm(stream_, c, a, Transpose::No, b, Transpose::Yes); });
    row(name + " wgrad", shape, 0, flops,
        [&] { gemm(stream_, weight_gradient, c, Transpose::Yes, a, Transpose::No, 1); });
  }

  void dense() {
    product("qkv", tokens_, model_.q_width() + 2 * model_.kv_width(), model_.hidden);
    product("proj", tokens_, model_.hidden, model_.q_width());
    product("lm_head", std::min<int64_t>(tokens_, 4096), model_.vocab, model_.hidden);
  }

  void attention() {
    const AttentionDims dims{tokens_ / model_.seq, model_.seq, model_.heads, model_.kv_heads,
                             model_.head_dim};
    const Tensor qkv = random({tokens_, dims.qkv_width()}), dqkv = output(qkv.shape());
    const Tensor out = output({tokens_, dims.q_width()}), dout = random(out.shape());
    const Tensor lse = output({dims.batch, dims.heads, dims.seq}, accumulate_dtype(dtype_));
    // Two products of [seq, seq] per head, half of it masked; five of them backward.
    const double flops = 2.0 * static_cast<double>(dims.batch * dims.heads * dims.head_dim) *
                         static_cast<double>(dims.seq * dims.seq);
    const std::string shape = fmt::format("B{} S{} H{}/{} hd{}", dims.batch, dims.seq, dims.heads,
                                          dims.kv_heads, dims.head_dim);
    row("attention forward", shape, 0, flops,
        [&] { attention_forward(stream_, out, lse, qkv, dims, 0.1, {}); });
    row("attention backward", shape, 0, 2.5 * flops,
        [&] { attention_backward(stream_, dqkv, dout, out, lse, qkv, dims, 0.1, {}); });
    row("attention backward, any order", shape, 0, 2.5 * flops,
        [&] { attention_backward(stream_, dqkv, dout, out, lse, qkv, dims, 0.1, {}, false); });
  }

  void memory_bound() {
    const Shape shape{tokens_, model_.hidden};
    const std::string text = fmt::format("{} x {}", tokens_, model_.hidden);
    const Tensor x = random(shape), residual = random(shape), sum = output(shape);
    const Tensor y = output(shape), weight = random({model_.hidden});
    const Tensor rstd = output({tokens_}, accumulate_dtype(dtype_));
    const Tensor dweight = random({model_.hidden}, accumulate_dtype(dtype_));
    const auto bytes = static_cast<double>(x.bytes());
    row("add + rmsnorm forward", text, 4 * bytes, 0,
        [&] { add_rmsnorm_forward(stream_, sum, y, rstd, x, residual, weight, 1e-5); });
    row("rmsnorm backward", text, 4 * bytes, 0,
        [&] { rmsnorm_backward(stream_, sum, dweight, y, x, rstd, weight, residual); });
    const int64_t n = std::min<int64_t>(int64_t{1} << 26, 64 * tokens_ * model_.hidden / 64);
    const DType state_dtype = accumulate_dtype(dtype_);
    const Tensor value = random({n}), master = random({n}, state_dtype);
    const Tensor m = random({n}, state_dtype), v = output({n}, state_dtype);
    const Tensor grad = random({n}, state_dtype);
    fill(stream_, v, 1.0);
    AdamwSettings settings;
    settings.lr = 1e-9;
    // Reads gradient, master, moments; writes master, moments and the value.
    const double adam_bytes =
        7 * static_cast<double>(master.bytes()) + static_cast<double>(value.bytes());
    row("adamw", fmt::format("{}", n), adam_bytes, 0,
        [&] { adamw(stream_, value, master, m, v, grad, settings); });
  }

  void experts() {
    const int64_t rows = tokens_ * moe_.top_k, ffn = moe_.ffn, hidden = model_.hidden;
    const DType wide = accumulate_dtype(dtype_);
    const Tensor logits = random({tokens_, moe_.experts}, wide);
    GateResult gate{output({tokens_, moe_.top_k}, wide), output({tokens_, moe_.top_k}, DType::I32),
                    output(logits.shape(), wide), output({tokens_}, wide)};
    const RoutingPlan plan{output({moe_.experts}, DType::I32),
                           output({moe_.experts + 1}, DType::I32), output({rows}, DType::I32),
                           output({rows}, DType::I32)};
    row("top-k gate forward", fmt::format("{} x {} top-{}", tokens_, moe_.experts, moe_.top_k),
        2 * static_cast<double>(logits.bytes()), 0,
        [&] { topk_gate_forward(stream_, gate, logits, moe_.router.pre_softmax); });
    row("routing plan", fmt::format("{} rows", rows), 4.0 * 3 * static_cast<double>(rows), 0,
        [&] { make_routing_plan(stream_, plan, gate.experts); });

    const Tensor x = random({tokens_, hidden}), permuted = output({rows, hidden});
    const Tensor y = output({tokens_, hidden});
    const auto moved = static_cast<double>(permuted.bytes());
    const std::string shape = fmt::format("{} x {}", rows, hidden);
    row("permute rows", shape, moved + static_cast<double>(x.bytes()), 0,
        [&] { permute_rows(stream_, permuted, x, plan); });
    row("combine rows", shape, moved + static_cast<double>(y.bytes()), 0,
        [&] { combine_rows(stream_, y, permuted, {}, plan); });

    const Tensor gate_up = random({rows, 2 * ffn}), h = output({rows, ffn});
    const Tensor probs = random({rows}, wide), dprobs = output({rows}, wide);
    row("swiglu forward", fmt::format("{} x {}", rows, ffn),
        static_cast<double>(gate_up.bytes() + h.bytes()), 0,
        [&] { swiglu_forward(stream_, h, gate_up, probs); });
    const Tensor dgate_up = output(gate_up.shape());
    row("swiglu backward", fmt::format("{} x {}", rows, ffn),
        static_cast<double>(2 * gate_up.bytes() + h.bytes()), 0,
        [&] { swiglu_backward(stream_, dgate_up, dprobs, h, gate_up, probs); });
    grouped("fc1", plan.offsets, permuted, 2 * ffn);
    grouped("fc2", plan.offsets, h, hidden);

    // The same with SwiGLU inside.
    const Tensor fc1 = random({moe_.experts, 2 * ffn, hidden});
    const Tensor fc2 = random({moe_.experts, hidden, ffn});
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(hidden * ffn);
    const std::string experts =
        fmt::format("{} experts, {} x {} x {}", moe_.experts, rows, 2 * ffn, hidden);
    row("grouped fc1 + swiglu forward", experts, 0, 2 * flops, [&] {
      grouped_gemm_swiglu_forward(stream_, gate_up, h, permuted, fc1, probs, plan.offsets);
    });
    row("grouped fc2 + swiglu dgrad", experts, 0, flops, [&] {
      grouped_gemm_swiglu_backward(stream_, dgate_up, dprobs, permuted, fc2, gate_up, probs,
                                   plan.offsets);
    });
  }

  void grouped(const std::string& name, const Tensor& offsets, const Tensor& x, int64_t width) {
    const int64_t rows = x.dim(0), depth = x.dim(1), experts = moe_.experts;
    fill_normal(stream_, x, 1.0, {1, 0, ++site_}, 0);
    const Tensor weight = random({experts, width, depth}), y = random({rows, width});
    const Tensor dweight = random(weight.shape(), accumulate_dtype(dtype_));
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(width * depth);
    const std::string shape = fmt::format("{} experts, {} x {} x {}", experts, rows, width, depth);
    row("grouped " + name + " forward", shape, 0, flops,
        [&] { grouped_gemm_forward(stream_, y, x, weight, offsets); });
    row("grouped " + name + " dgrad", shape, 0, flops,
        [&] { grouped_gemm_dgrad(stream_, x, y, weight, offsets); });
    row("grouped " + name + " wgrad", shape, 0, flops,
        [&] { grouped_gemm_wgrad(stream_, dweight, y, x, offsets); });
  }

  Stream& stream_;
  ModelConfig model_;
  MoeConfig moe_;
  DType dtype_;
  int64_t tokens_;
  double copy_ceiling_;
  double gemm_ceiling_;
  uint32_t site_ = 0;
  std::vector<BenchRow> rows_;
};

}  // namespace

std::vector<BenchRow> bench_ops(Stream& stream, const RunConfig& config) {
  return OpsBench(stream, config).run();
}

}  // namespace ferry
