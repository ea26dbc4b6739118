#include "moe/router.h"

#include "core/ops/elementwise.h"
#include "core/ops/reduce.h"
#include "core/ops/split_gemm.h"

namespace ferry {

Router::Router(const std::string& name, int64_t hidden, const MoeConfig& config, double init_std,
               DType dtype, const std::string& force_routing, uint64_t seed,
               const TensorParallel& tensor)
    : top_k_(config.top_k),
      pre_softmax_(config.router.pre_softmax),
      aux_coeff_(config.router.coefficient("aux_loss")),
      z_coeff_(config.router.z_coeff),
      tensor_(tensor),
      forced_(force_routing, config.experts, config.top_k, seed),
      counts_name_("expert_tokens/" + name) {
  weight_.name = name + "/weight";
  weight_.shape = {config.experts, hidden};
  weight_.dtype = accumulate_dtype(dtype);
  weight_.init = Init::normal(init_std);
  tensor_.replicate_inside(weight_);
}

Routing Router::forward(Pass& pass, const Tensor& x) {
  Stream& stream = pass.stream;
  const int64_t num_tokens = x.dim(0), experts = weight_.shape[0];
  const Tensor logits = Tensor::empty(stream, "router", {num_tokens, experts}, weight_.dtype);
  split_gemm_forward(stream, logits, x, weight_.value);
  if (forced_.active()) {
    const int64_t first_token = tensor_.rank * num_tokens;
    accumulate(stream, logits, forced_.bias(stream, first_token, num_tokens, weight_.dtype));
  }

  GateResult result;
  result.probs = Tensor::empty(stream, "router", {num_tokens, top_k_}, weight_.dtype);
  result.experts = Tensor::empty(stream, "router", {num_tokens, top_k_}, DType::I32);
  result.scores = Tensor::empty(stream, "router", {num_tokens, experts}, weight_.dtype);
  result.lse = Tensor::empty(stream, "router", {num_tokens}, weight_.dtype);
  topk_gate_forward(stream, result, logits, pre_softmax_);

  struct Decision {
    RoutingPlan plan;
    Tensor expert_gradient;
  };
  const auto decision = pass.once(this, [&] {
    Decision made;
    made.plan = RoutingPlan::empty(stream, experts, num_tokens * top_k_);
    make_routing_plan(stream, made.plan, result.experts);
    if (aux_coeff_ > 0)
      made.expert_gradient = Tensor::empty(stream, "router", {experts}, weight_.dtype);
    record_losses(pass, result, made.plan, made.expert_gradient);
    return made;
  });
  pass.tape().save(
      stream, Label::Router,
      {x, result.probs, result.experts, result.scores, result.lse, decision.expert_gradient});
  return {decision.plan, result.probs, result.experts};
}

void Router::record_losses(Pass& pass, const GateResult& gate, const RoutingPlan& plan,
                           const Tensor& expert_gradient) {
  Stream& stream = pass.stream;
  const int64_t num_tokens = gate.scores.dim(0) * tensor_.size, experts = gate.scores.dim(1);
  if (expert_gradient.defined()) {
    const Tensor sums = Tensor::empty(stream, "router", {experts}, weight_.dtype);
    column_sums(stream, sums, gate.scores);
    Tensor counts = plan.counts;
    if (tensor_.size > 1) {
      counts = Tensor::empty(stream, "router", counts.shape(), counts.dtype());
      stream.copy(counts, plan.counts);
      tensor_.group->all_reduce(stream, counts, ReduceOp::Sum);
    }
    const double scale = aux_coeff_ * static_cast<double>(pass.batch.num_loss_tokens);
    load_balance_loss(stream, pass.totals.get(stream, "aux_loss", {1}, weight_.dtype),
                      expert_gradient, sums, counts, num_tokens, top_k_, scale);
  }
  if (z_coeff_ > 0)
    mean_square(stream, pass.totals.get(stream, "z_loss", {1}, weight_.dtype), gate.lse,
                static_cast<double>(num_tokens));
  accumulate_counts(stream, pass.totals.get(stream, counts_name_, {experts}, DType::I64),
                    plan.counts);
}

Tensor Router::backward(Pass& pass, const Tensor& dprobs) {
  Stream& stream = pass.stream;
  const auto [x, probs, experts, scores, lse, expert_gradient] =
      pass.tape().load<6>(stream, Label::Router);
  const double z_gradient = z_coeff_ * static_cast<double>(pass.batch.num_loss_tokens) /
                            static_cast<double>(x.dim(0) * tensor_.size);
  const Tensor dlogits = Tensor::empty(stream, "gradients", scores.shape(), weight_.dtype);
  topk_gate_backward(stream, dlogits, dprobs, {probs, experts, scores, lse}, expert_gradient,
                     z_gradient, pre_softmax_);
  split_gemm_wgrad(stream, weight_.grad, dlogits, x);
  const Tensor dx = Tensor::empty(stream, "gradients", x.shape(), x.dtype());
  split_gemm_dgrad(stream, dx, dlogits, weight_.value);
  return dx;
}

}  // namespace ferry
