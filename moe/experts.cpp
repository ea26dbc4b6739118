#include "moe/experts.h"

#include <vector>

#include "core/ops/swiglu.h"

namespace ferry {
namespace {

Tensor make_activation(Stream& stream, const Tensor& gate_up) {
  return Tensor::empty(stream, name_of(Label::MoeAct), {gate_up.dim(0), gate_up.dim(1) / 2},
                       gate_up.dtype());
}

// Keeps the matrices of this rank's experts.
void deal_out(Parameter& weight, const ExpertParallel& parallel) {
  if (parallel.ep_size == 1) return;
  const int64_t num_experts = weight.shape[0], rows = weight.shape[1];
  CHECK(num_experts % parallel.ep_size == 0, weight.name, ": ", parallel.ep_size,
        " ranks do not divide ", num_experts, " experts");
  const int64_t first = parallel.first_local(num_experts);
  const int64_t num_local = parallel.num_local(num_experts);
  weight.part = weight.placement().rows(first * rows, (first + num_local) * rows);
  weight.shape = {num_local, rows, weight.shape[2]};
}

}  // namespace

Experts::Experts(const std::string& name, int64_t num_experts, const MlpConfig& config,
                 const ExpertParallel& parallel, bool fused)
    : fused_(fused) {
  fc1_.name = name + "/fc1/weight";
  fc1_.shape = {num_experts, 2 * config.ffn, config.hidden};
  fc1_.init = Init::normal(config.init_std);
  fc2_.name = name + "/fc2/weight";
  fc2_.shape = {num_experts, config.hidden, config.ffn};
  fc2_.init = Init::normal(config.output_init_std);
  for (Parameter* weight : {&fc1_, &fc2_}) {
    weight->dtype = config.dtype;
    weight->axis = ReduceAxis::Expert;
    deal_out(*weight, parallel);
  }
  const std::vector<int64_t> gate_and_up(static_cast<size_t>(2 * fc1_.shape[0]), config.ffn);
  cut_rows(fc1_, gate_and_up, parallel.etp_rank, parallel.etp_size);
  cut_columns(fc2_, parallel.etp_rank, parallel.etp_size);
}

Tensor Experts::forward(Pass& pass, const Rows& rows, const Tensor& probs, const Tensor& offsets) {
  Stream& stream = pass.stream;
  const Tensor num_rows = offsets.rows(fc1_.shape[0], fc1_.shape[0] + 1);
  const Tensor gate_up =
      Tensor::empty(stream, "expert fc1 output", {rows.num_rows(), fc1_.shape[1]}, rows.x.dtype());
  const Tensor h = make_activation(stream, gate_up);
  grouped_gemm_swiglu_forward(stream, gate_up, h, rows, fc1_.value, probs, offsets);
  pass.tape().save(stream, saved_as(Label::ExpertFc1), {rows.x, rows.slot_of_row, offsets},
                   rows.gathered() ? Tensor() : num_rows);
  pass.tape().save(stream, saved_as(Label::MoeAct), {gate_up, probs}, num_rows);
  pass.tape().save_rebuildable(Label::MoeAct, h, {gate_up, probs},
                               [](Stream& on, std::span<const Tensor> inputs) {
                                 const Tensor again = make_activation(on, inputs[0]);
                                 swiglu_forward(on, again, inputs[0], inputs[1]);
                                 return again;
                               });
  const Tensor y =
      Tensor::empty(stream, "expert output", {rows.num_rows(), rows.x.dim(1)}, rows.x.dtype());
  grouped_gemm_forward(stream, y, h, fc2_.value, offsets);
  pass.tape().save(stream, saved_as(Label::ExpertFc2), {h, offsets}, num_rows);
  return y;
}

std::pair<Experts::Gradients, Experts::Fc1Operands> Experts::backward(Pass& pass, Tensor dy) {
  Stream& stream = pass.stream;
  Tensor dgate_up, dprobs;
  {
    const auto [h, offsets] = pass.tape().load<2>(stream, saved_as(Label::ExpertFc2));
    grouped_gemm_wgrad(stream, fc2_.grad, dy, h, offsets);

    const auto [gate_up, probs] = pass.tape().load<2>(stream, saved_as(Label::MoeAct));
    dgate_up = Tensor::empty(stream, "gradients", gate_up.shape(), gate_up.dtype());
    dprobs = Tensor::empty(stream, "gradients", probs.shape(), probs.dtype());
    grouped_gemm_swiglu_backward(stream, dgate_up, dprobs, dy, fc2_.value, gate_up, probs, offsets);
    dy = Tensor();
  }
  const auto [x, slot_of_row, offsets] = pass.tape().load<3>(stream, saved_as(Label::ExpertFc1));
  const Tensor drows = Tensor::empty(stream, "gradients", {dgate_up.dim(0), x.dim(1)}, x.dtype());
  grouped_gemm_dgrad(stream, drows, dgate_up, fc1_.value, offsets);
  return {{drows, dprobs}, {dgate_up, Rows(x, slot_of_row), offsets}};
}

void Experts::backward_fc1_weight(Stream& stream, const Fc1Operands& operands) {
  grouped_gemm_wgrad(stream, fc1_.grad, operands.doutput, operands.input, operands.offsets);
}

void Experts::visit(const ParameterVisitor& visitor) {
  visitor(fc1_);
  visitor(fc2_);
}

}  // namespace ferry
