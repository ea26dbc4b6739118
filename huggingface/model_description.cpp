#include "huggingface/model_description.h"

#include <algorithm>

#include "core/check.h"

namespace ferry {

std::string_view model_type(HfFamily family) {
  switch (family) {
    case HfFamily::Mixtral:
      return "mixtral";
    case HfFamily::Qwen3Moe:
      return "qwen3_moe";
    case HfFamily::Olmoe:
      return "olmoe";
  }
  return "?";
}

std::string_view architecture(HfFamily family) {
  switch (family) {
    case HfFamily::Mixtral:
      return "MixtralForCausalLM";
    case HfFamily::Qwen3Moe:
      return "Qwen3MoeForCausalLM";
    case HfFamily::Olmoe:
      return "OlmoeForCausalLM";
  }
  return "?";
}

HfFamily family_of(const ModelDescription& model) {
  const HfFamily family = model.qk_norm == "none"   ? HfFamily::Mixtral
                          : model.qk_norm == "head" ? HfFamily::Qwen3Moe
                                                    : HfFamily::Olmoe;
  std::vector<std::string> reasons;
  const bool all_moe = std::find(model.is_moe_layer.begin(), model.is_moe_layer.end(), false) ==
                       model.is_moe_layer.end();
  if (model.experts == 0)
    reasons.push_back("the model has no experts; dense models are not supported");
  if (family != HfFamily::Qwen3Moe && model.experts > 0 && !all_moe)
    reasons.push_back("every layer has experts there, but moe.layer_freq makes some layers dense");
  if (family == HfFamily::Mixtral && !model.renormalise)
    reasons.push_back(
        "it divides the probabilities of the chosen experts by their sum, which "
        "moe.router.pre_softmax = true does not");
  if (family == HfFamily::Olmoe && model.q_width() != model.hidden)
    reasons.push_back("its heads have hidden / heads channels, but model.head_dim is another");
  if (reasons.empty()) return family;
  std::string text;
  for (const std::string& reason : reasons) text += "\n  why : " + reason;
  fail(ExitCode::Usage, "error: ", architecture(family), ", which model.qk_norm = ", model.qk_norm,
       " chooses, cannot express this model", text,
       "\n  try : docs/huggingface.md lists what each architecture has");
}

}  // namespace ferry
