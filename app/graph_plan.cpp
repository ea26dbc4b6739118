#include "app/graph_plan.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "app/model_layout.h"

namespace ferry {
namespace {

// A plan of the routing is part of the router, so moe_preprocess adds nothing to moe_router.
constexpr std::pair<std::string_view, Label> kParts[] = {
    {"attn", Label::Attn}, {"mlp", Label::Mlp}, {"moe", Label::Moe}, {"moe_router", Label::Router}};

// Tensors [tokens, hidden] of the graphs of a layer: x, y, dy, dx; the router has no such y and dy.
int64_t num_graph_tensors(const std::set<Label>& parts, bool is_moe_layer) {
  const auto count = [&](Label part, int64_t num) { return parts.contains(part) ? num : 0; };
  return count(Label::Layer, 4) + count(Label::Attn, 4) +
         (is_moe_layer ? count(Label::Moe, 4) + count(Label::Router, 2) : count(Label::Mlp, 4));
}

}  // namespace

bool graphs_micro_batches(const CudaGraphTable& table) { return table.impl == "full_iteration"; }

std::set<Label> graphed_parts(const CudaGraphTable& table) {
  if (table.impl != "local") return {};
  if (table.modules.empty()) return {Label::Layer};
  std::set<Label> parts;
  for (const auto& [name, label] : kParts)
    if (std::find(table.modules.begin(), table.modules.end(), name) != table.modules.end())
      parts.insert(label);
  return parts;
}

int64_t graph_tensor_bytes(const RunConfig& config, int64_t ranks, int pp) {
  const std::set<Label> parts = graphed_parts(config.cuda_graph);
  if (parts.empty()) return 0;
  const std::vector<ModelPart> chunks = model_parts(config, pp);
  std::vector<int64_t> under_way(chunks.size()), most(chunks.size());
  for (const Action& action : make_schedule(training_schedule(config, ranks), pp)) {
    const auto chunk = static_cast<size_t>(action.chunk);
    under_way[chunk] += action.kind == Action::Kind::Forward ? 1 : -1;
    most[chunk] = std::max(most[chunk], under_way[chunk]);
  }
  const GptConfig gpt = config.gpt();
  int64_t num_tensors = 0;
  for (size_t i = 0; i < chunks.size(); ++i)
    for (int64_t layer = chunks[i].first_layer;
         layer < chunks[i].first_layer + chunks[i].num_layers; ++layer)
      num_tensors += most[i] * num_graph_tensors(parts, gpt.moe.is_moe_layer(layer));
  return num_tensors * config.batch.micro * gpt.model.seq * gpt.model.hidden *
         static_cast<int64_t>(size_of(dtype_of(gpt.model.precision)));
}

}  // namespace ferry
