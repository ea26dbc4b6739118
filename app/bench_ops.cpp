#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <unordered_set>

#include "app/bench.h"
#include "app/bench_operands.h"
#include "core/host_copy.h"
#include "core/ops/adamw.h"
#include "core/ops/attention.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/gemm.h"
#include "core/ops/grouped_gemm.h"
#include "core/ops/permute.h"
#include "core/ops/qk_norm.h"
#include "core/ops/reduce.h"
#include "core/ops/rmsnorm.h"
#include "core/ops/rope.h"
#include "core/ops/split_gemm.h"
#include "core/ops/swiglu.h"
#include "core/ops/topk_gate.h"

namespace ferry {
namespace {

// What a GPU's cache does not hold: the least size of a memory-bound row's largest operand.
constexpr int64_t kBeyondCache = int64_t{1} << 27;

// Makes operands of one configuration and collects rows.
class OpsBench : BenchOperands {
 public:
  OpsBench(Stream& stream, const RunConfig& config)
      : BenchOperands(stream, dtype_of(config.model.precision)),
        model_(config.model),
        moe_(config.moe),
        tokens_(config.batch.micro * config.model.seq),
        copy_ceiling_(measure_copy_ceiling(stream)),
        gemm_ceiling_(measure_gemm_ceiling(stream, dtype_)) {}

  std::vector<BenchRow> run() {
    dense();
    attention();
    norms();
    rotary();
    vocabulary();
    optimizer();
    if (moe_.experts > 0) {
      router();
      experts();
    }
    return std::move(rows_);
  }

 private:
  Tensor random_ints(int64_t elements, int64_t end) {
    std::mt19937_64 generator(next_key().site);
    std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(end - 1));
    std::vector<int32_t> values(elements);
    for (int32_t& value : values) value = any(generator);
    return from_host(stream_, "bench", values, {elements});
  }

  // The micro-batch's tokens, or more where a GPU's cache would hold rows of `row_bytes`; whole
  // sequences.
  int64_t many_tokens(int64_t row_bytes) const {
    if (stream_.device().is_cpu()) return tokens_;
    const int64_t sequences = kBeyondCache / (row_bytes * model_.seq) + 1;
    return std::max(tokens_, sequences * model_.seq);
  }
  int64_t row_bytes(int64_t width) const { return width * static_cast<int64_t>(size_of(dtype_)); }

  void row(const std::string& name, const std::string& shape, double bytes, double flops,
           const std::function<void()>& call) {
    BenchRow made{"ops", name, shape};
    made.times = time_calls(stream_, call);
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

  // A row of an operation that is bound by memory: every tensor read or written once.
  void memory_row(const std::string& name, const std::string& shape,
                  const std::vector<Tensor>& moved, const std::function<void()>& call) {
    int64_t bytes = 0;
    for (const Tensor& tensor : moved) bytes += tensor.bytes();
    row(name, shape, static_cast<double>(bytes), 0, call);
  }

  void norms() {
    const int64_t tokens = many_tokens(row_bytes(model_.hidden));
    const Shape shape{tokens, model_.hidden};
    const std::string text = fmt::format("{} x {}", tokens, model_.hidden);
    const Tensor x = random(shape), residual = random(shape), sum = output(shape);
    const Tensor y = output(shape), weight = random({model_.hidden});
    const Tensor rstd = output({tokens}, accumulate_dtype(dtype_));
    const Tensor dweight = random({model_.hidden}, accumulate_dtype(dtype_));
    memory_row("rmsnorm forward", text, {x, y, rstd},
               [&] { rmsnorm_forward(stream_, y, rstd, x, weight, 1e-5); });
    memory_row("add + rmsnorm forward", text, {x, residual, sum, y, rstd},
               [&] { add_rmsnorm_forward(stream_, sum, y, rstd, x, residual, weight, 1e-5); });
    memory_row("rmsnorm backward", text, {y, x, rstd, residual, sum},
               [&] { rmsnorm_backward(stream_, sum, dweight, y, x, rstd, weight, residual); });
    memory_row("add", text, {x, residual, sum}, [&] { add(stream_, sum, x, residual); });
  }

  void rotary() {
    const int64_t width = model_.q_width() + 2 * model_.kv_width();
    const int64_t tokens = many_tokens(row_bytes(width)), half = model_.head_dim / 2;
    const AttentionDims dims{tokens / model_.seq, model_.seq, model_.heads, model_.kv_heads,
                             model_.head_dim};
    const DType wide = accumulate_dtype(dtype_);
    const Tensor qkv = random({tokens, width}), y = output(qkv.shape());
    const std::string text = fmt::format("{} x {}", tokens, width);
    if (model_.qk_norm != "none") {
      const bool full = model_.qk_norm == "full";
      const QkNormKind kind = full ? QkNormKind::Full : QkNormKind::Head;
      const int64_t q_weights = full ? model_.q_width() : model_.head_dim;
      const int64_t k_weights = full ? model_.kv_width() : model_.head_dim;
      const Tensor q_weight = random({q_weights}), k_weight = random({k_weights});
      const Tensor dq_weight = random({q_weights}, wide), dk_weight = random({k_weights}, wide);
      const Tensor dy = random(qkv.shape());
      const Tensor rstd = output({tokens, full ? 2 : model_.heads + model_.kv_heads}, wide);
      memory_row("qk-norm forward", text, {qkv, y, rstd}, [&] {
        qk_norm_forward(stream_, y, rstd, qkv, q_weight, k_weight, dims, kind, 1e-5);
      });
      // Of the values only the gradient is moved.
      const double bytes = 3.0 * static_cast<double>(qkv.bytes()) +
                           static_cast<double>(rstd.bytes()) -
                           static_cast<double>(tokens * row_bytes(model_.kv_width()));
      row("qk-norm backward", text, bytes, 0, [&] {
        qk_norm_backward(stream_, y, dq_weight, dk_weight, dy, qkv, rstd, q_weight, k_weight, dims,
                         kind);
      });
    }
    const Tensor cosine = output({model_.seq, half}, wide), sine = output(cosine.shape(), wide);
    rope_table(stream_, cosine, sine, model_.rope_theta);
    const int64_t rotated = model_.q_width() + model_.kv_width();
    row("rope in place", fmt::format("{} x {}", tokens, rotated),
        2.0 * static_cast<double>(tokens * row_bytes(rotated)), 0,
        [&] { rope(stream_, qkv, qkv, cosine, sine, dims, Rotation::Forward); });
  }

  // Embedding and loss.
  void vocabulary() {
    const DType wide = accumulate_dtype(dtype_);
    const int64_t tokens = many_tokens(row_bytes(model_.hidden));
    {
      const Tensor ids = random_ints(tokens, model_.vocab);
      const Tensor weight = random({model_.vocab, model_.hidden});
      const Tensor dweight = random(weight.shape(), wide), y = random({tokens, model_.hidden});
      const std::string text = fmt::format("{} x {}", tokens, model_.hidden);
      const std::vector<int32_t> chosen = read_back<int32_t>(stream_, ids);
      const auto distinct =
          static_cast<int64_t>(std::unordered_set<int32_t>(chosen.begin(), chosen.end()).size());
      const auto read = static_cast<double>(distinct * model_.hidden);
      row("embedding backward", text,
          static_cast<double>(y.bytes()) + 2 * read * static_cast<double>(size_of(wide)), 0,
          [&] { embedding_backward(stream_, dweight, y, ids); });
      row("embedding forward", text,
          static_cast<double>(y.bytes()) + read * static_cast<double>(size_of(dtype_)), 0,
          [&] { embedding_forward(stream_, y, weight, ids); });
    }
    const int64_t chunk = std::min<int64_t>(tokens_, 4096);
    const Tensor logits = random({chunk, model_.vocab});
    const Tensor labels = random_ints(chunk, model_.vocab), mask = output({chunk}, DType::F32);
    const Tensor token_loss = output({chunk}, wide), loss_sum = output({1}, wide);
    fill(stream_, mask, 1);
    stream_.zero(loss_sum);
    memory_row("cross-entropy", fmt::format("{} x {}", chunk, model_.vocab), {logits, logits},
               [&] { cross_entropy(stream_, token_loss, loss_sum, logits, labels, mask, true); });
  }

  void optimizer() {
    const int64_t n = stream_.device().is_cpu() ? tokens_ * model_.hidden : int64_t{1} << 26;
    const DType wide = accumulate_dtype(dtype_);
    const Tensor value = random({n}), master = random({n}, wide), grad = random({n}, wide);
    const Tensor m = random({n}, wide), v = output({n}, wide), total = output({1}, DType::F64);
    fill(stream_, v, 1.0);
    stream_.zero(total);
    AdamwSettings settings;
    settings.lr = 1e-9;
    memory_row("adamw", fmt::format("{}", n), {grad, master, master, m, m, v, v, value},
               [&] { adamw(stream_, value, master, m, v, grad, settings); });
    memory_row("sum of squares", fmt::format("{}", n), {grad},
               [&] { sum_squares(stream_, total, grad); });
  }

  void router() {
    const DType wide = accumulate_dtype(dtype_);
    const int64_t experts = moe_.experts, k = moe_.top_k;
    {
      const int64_t tokens = many_tokens(row_bytes(model_.hidden));
      const Tensor x = random({tokens, model_.hidden}),
                   weight = random({experts, model_.hidden}, wide);
      const Tensor logits = output({tokens, experts}, wide), dlogits = random(logits.shape(), wide);
      const Tensor dweight = random(weight.shape(), wide), dx = output(x.shape());
      const std::string text = fmt::format("{} x {} x {}", tokens, experts, model_.hidden);
      memory_row("router logits", text, {x, logits},
                 [&] { split_gemm_forward(stream_, logits, x, weight); });
      memory_row("router dgrad", text, {dlogits, dx},
                 [&] { split_gemm_dgrad(stream_, dx, dlogits, weight); });
      memory_row("router wgrad", text, {dlogits, x},
                 [&] { split_gemm_wgrad(stream_, dweight, dlogits, x); });
    }
    const int64_t tokens = many_tokens(experts * static_cast<int64_t>(size_of(wide)));
    const int64_t slots = tokens * k;
    const Tensor logits = random({tokens, experts}, wide), dprobs = random({tokens, k}, wide);
    const Tensor dlogits = output(logits.shape(), wide), sums = output({experts}, wide);
    const Tensor expert_gradient = random({experts}, wide);
    const GateResult gate{output({tokens, k}, wide), output({tokens, k}, DType::I32),
                          output(logits.shape(), wide), output({tokens}, wide)};
    const bool pre_softmax = moe_.router.pre_softmax;
    const std::string text = fmt::format("{} x {} top-{}", tokens, experts, k);
    memory_row("top-k gate forward", text,
               {logits, gate.scores, gate.probs, gate.experts, gate.lse},
               [&] { topk_gate_forward(stream_, gate, logits, pre_softmax); });
    memory_row("top-k gate backward", text,
               {dprobs, gate.scores, gate.probs, gate.experts, gate.lse, dlogits}, [&] {
                 topk_gate_backward(stream_, dlogits, dprobs, gate, expert_gradient, 1e-3,
                                    pre_softmax);
               });
    memory_row("column sums", text, {gate.scores},
               [&] { column_sums(stream_, sums, gate.scores); });
    const RoutingPlan plan = RoutingPlan::empty(stream_, experts, slots);
    memory_row("routing plan", fmt::format("{} rows", slots),
               {gate.experts, plan.row_of_slot, plan.slot_of_row},
               [&] { make_routing_plan(stream_, plan, gate.experts); });
    const Tensor by_row = output({slots}, wide), by_slot = gate.probs.reshape({slots});
    memory_row("gather scalars", fmt::format("{} rows", slots), {by_row, by_slot, plan.slot_of_row},
               [&] { gather_scalars(stream_, by_row, by_slot, plan.slot_of_row); });
  }

  void experts() {
    const int64_t rows = tokens_ * moe_.top_k, ffn = moe_.ffn, hidden = model_.hidden;
    const DType wide = accumulate_dtype(dtype_);
    const Tensor logits = random({tokens_, moe_.experts}, wide);
    const GateResult gate{output({tokens_, moe_.top_k}, wide),
                          output({tokens_, moe_.top_k}, DType::I32), output(logits.shape(), wide),
                          output({tokens_}, wide)};
    const RoutingPlan plan = RoutingPlan::empty(stream_, moe_.experts, rows);
    // As large as in a step: what counts here is the number of launches.
    row("gate + routing plan", fmt::format("{} x {} top-{}", tokens_, moe_.experts, moe_.top_k),
        2 * static_cast<double>(logits.bytes()) + 4.0 * 5 * static_cast<double>(rows), 0, [&] {
          topk_gate_forward(stream_, gate, logits, moe_.router.pre_softmax);
          make_routing_plan(stream_, plan, gate.experts);
        });

    const Tensor x = random({tokens_, hidden}), permuted = output({rows, hidden});
    const Tensor y = output({tokens_, hidden});
    const std::string shape = fmt::format("{} x {}", rows, hidden);
    memory_row("permute rows", shape, {permuted, x},
               [&] { permute_rows(stream_, permuted, x, plan); });
    memory_row("combine rows", shape, {permuted, y},
               [&] { combine_rows(stream_, y, permuted, {}, plan); });

    const Tensor gate_up = random({rows, 2 * ffn}), h = output({rows, ffn});
    const Tensor probs = random({rows}, wide), dprobs = output({rows}, wide);
    memory_row("swiglu forward", fmt::format("{} x {}", rows, ffn), {gate_up, h},
               [&] { swiglu_forward(stream_, h, gate_up, probs); });
    const Tensor dgate_up = output(gate_up.shape());
    memory_row("swiglu backward", fmt::format("{} x {}", rows, ffn), {gate_up, dgate_up, h},
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
    fill_normal(stream_, x, 1.0, next_key(), 0);
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

  ModelConfig model_;
  MoeConfig moe_;
  int64_t tokens_;
  double copy_ceiling_;
  double gemm_ceiling_;
  std::vector<BenchRow> rows_;
};

}  // namespace

std::vector<BenchRow> bench_ops(Stream& stream, const RunConfig& config) {
  return OpsBench(stream, config).run();
}

}  // namespace ferry
