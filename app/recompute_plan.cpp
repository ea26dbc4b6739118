#include "app/recompute_plan.h"

namespace ferry {
namespace {

bool is_discarded(Label label) {
  return label == Label::Layernorm || label == Label::MoeAct || label == Label::MoePermute ||
         label == Label::MlaUpProj;
}

// The labels of recompute.modules that are discarded, or those that are checkpointed.
std::set<Label> selected(const RecomputeTable& table, bool discarded) {
  std::set<Label> labels;
  if (table.granularity != "selective") return labels;
  for (const std::string& module : table.modules) {
    const std::optional<Label> label = label_of(module);
    CHECK(label, "no module is called ", module);
    if (is_discarded(*label) == discarded) labels.insert(*label);
  }
  return labels;
}

}  // namespace

GptRecompute gpt_recompute(const RecomputeTable& table) {
  GptRecompute recompute;
  recompute.modules = selected(table, false);
  if (table.granularity != "full") return recompute;
  CHECK(table.method == "uniform" || table.method == "block", "no method is called ", table.method);
  recompute.layers =
      table.method == "uniform" ? GptRecompute::Layers::Uniform : GptRecompute::Layers::Block;
  recompute.num_layers = table.num_layers;
  recompute.distribute = table.distribute_saved_activations;
  return recompute;
}

std::set<Label> discarded_labels(const RecomputeTable& table) { return selected(table, true); }

}  // namespace ferry
