#include "core/tape.h"

#include <utility>

namespace ferry {
namespace {

constexpr std::pair<Label, std::string_view> kNames[] = {
    {Label::Embedding, "embedding"},
    {Label::AttnNorm, "attn_norm"},
    {Label::QkvLinear, "qkv_linear"},
    {Label::QkNorm, "qk_norm"},
    {Label::CoreAttn, "core_attn"},
    {Label::AttnProj, "attn_proj"},
    {Label::MlpNorm, "mlp_norm"},
    {Label::Router, "router"},
    {Label::ExpertFc1, "expert_fc1"},
    {Label::MoeAct, "moe_act"},
    {Label::ExpertFc2, "expert_fc2"},
    {Label::FusedGroupMlp, "fused_group_mlp"},
    {Label::Mlp, "mlp"},
    {Label::SharedExperts, "shared_experts"},
    {Label::Moe, "moe"},
    {Label::MlaUpProj, "mla_up_proj"},
    {Label::Layernorm, "layernorm"},
    {Label::MoePermute, "moe_permute"},
    {Label::Dropout, "dropout"},
    {Label::FinalNorm, "final_norm"},
    {Label::LossHead, "loss_head"},
    {Label::Attn, "attn"},
    {Label::Layer, "layer"},
};

class RebuildResidence final : public Residence {
 public:
  RebuildResidence(std::vector<std::shared_ptr<SavedTensor>> inputs, std::vector<Shape> shapes,
                   Rebuild rebuild)
      : inputs_(std::move(inputs)), shapes_(std::move(shapes)), rebuild_(std::move(rebuild)) {}

  Tensor bring_back(Stream& stream) override {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < inputs_.size(); ++i)
      tensors.push_back(inputs_[i] ? inputs_[i]->get(stream).reshape(shapes_[i]) : Tensor());
    return rebuild_(stream, tensors);
  }

 private:
  std::vector<std::shared_ptr<SavedTensor>> inputs_;
  std::vector<Shape> shapes_;
  Rebuild rebuild_;
};

}  // namespace

std::string_view name_of(Label label) {
  for (const auto& [known, name] : kNames)
    if (known == label) return name;
  return "?";
}

std::optional<Label> label_of(std::string_view name) {
  for (const auto& [label, known] : kNames)
    if (known == name) return label;
  return std::nullopt;
}

SavedTensor::SavedTensor(Tensor tensor, Label label, MemoryLedger* ledger)
    : tensor_(std::move(tensor)),
      shape_(tensor_.shape()),
      dtype_(tensor_.dtype()),
      label_(label),
      ledger_(ledger) {
  count(true);
}

SavedTensor::~SavedTensor() { count(false); }

void SavedTensor::count(bool on_device) const {
  if (ledger_ == nullptr || !tensor_.defined()) return;
  if (on_device)
    ledger_->add(name_of(label_), bytes());
  else
    ledger_->remove(name_of(label_), bytes());
}

const Tensor& SavedTensor::get(Stream& stream) {
  if (!tensor_.defined() && residence_) {
    tensor_ = residence_->bring_back(stream);
    residence_.reset();
    CHECK(tensor_.numel() == shape_.numel() && tensor_.dtype() == dtype_,
          "a tensor came back to the tape as ", tensor_.shape());
    count(true);
  }
  return tensor_;
}

void SavedTensor::move_to(std::unique_ptr<Residence> residence) {
  count(false);
  residence_ = std::move(residence);
  tensor_ = Tensor();
}

void SavedTensor::belongs_to(Label label) {
  count(false);
  label_ = label;
  count(true);
}

Tape::Key Tape::key_of(const Tensor& tensor) {
  return {tensor.storage()->id(), tensor.byte_offset(), tensor.numel()};
}

std::shared_ptr<SavedTensor> Tape::find(const Tensor& tensor) const {
  const auto found = known_.find(key_of(tensor));
  return found == known_.end() ? nullptr : found->second.lock();
}

void Tape::save(Stream& stream, Label label, std::initializer_list<Tensor> tensors,
                const Tensor& num_rows) {
  if (!recording()) return;
  Record record{label, {}, {}, {}, num_rows};
  for (const Tensor& tensor : tensors) {
    std::shared_ptr<SavedTensor> saved;
    if (tensor.defined()) saved = find(tensor);
    if (saved) {
      saved->belongs_to(label);
    } else {
      saved = std::make_shared<SavedTensor>(tensor, label, ledger_);
      if (tensor.defined()) known_[key_of(tensor)] = saved;
    }
    record.tensors.push_back(std::move(saved));
    record.shapes.push_back(tensor.shape());
  }
  records_.push_back(std::move(record));
  if (policy_) policy_->saved(records_.back(), stream);
}

void Tape::save_rebuildable(Label label, const Tensor& tensor, std::initializer_list<Tensor> inputs,
                            Rebuild rebuild) {
  if (!recording() || !policy_ || !policy_->discards(label)) return;
  std::vector<std::shared_ptr<SavedTensor>> saved_inputs;
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) {
    saved_inputs.push_back(input.defined() ? find(input) : nullptr);
    shapes.push_back(input.shape());
    CHECK(saved_inputs.back() || !input.defined(), "an input of a rebuildable ", name_of(label),
          " is not on the tape");
  }
  auto saved = std::make_shared<SavedTensor>(tensor, label, ledger_);
  saved->move_to(std::make_unique<RebuildResidence>(std::move(saved_inputs), std::move(shapes),
                                                    std::move(rebuild)));
  known_[key_of(tensor)] = saved;
  CHECK(!records_.empty(), "save() the inputs before save_rebuildable()");
  records_.back().rebuildable.push_back(std::move(saved));
}

void Tape::load_into(Stream& stream, Label label, std::span<Tensor> tensors) {
  CHECK(!records_.empty(), "load(", name_of(label), ") from an empty tape");
  Record& newest = records_.back();
  CHECK(newest.label == label && newest.tensors.size() == tensors.size(), "load(", name_of(label),
        ") of ", tensors.size(), " tensors, but the newest record is ", name_of(newest.label),
        " with ", newest.tensors.size());
  if (policy_) policy_->loading(newest, stream);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = newest.tensors[i]->get(stream);
    if (tensor.defined()) tensors[i] = tensor.reshape(newest.shapes[i]);
  }
  records_.pop_back();
  if (records_.empty()) known_.clear();
}

}  // namespace ferry
