// Rules between the sizes of a model. Sizes of 0 are missing keys, which are reported elsewhere.

#include <fmt/format.h>

#include "app/nearest.h"
#include "app/validate.h"

namespace ferry {

namespace {

// More than any machine holds: a slip of the pen, and near overflow of 64 bits.
constexpr double kMostParameters = 1e15;
constexpr double kMostActivations = 1e14;

double rough_parameters(const ModelConfig& model, const MoeConfig& moe) {
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  const double attention =
      2 * d(model.hidden) * d(model.head_dim) * (d(model.heads) + d(model.kv_heads));
  const double mlp =
      3 * d(model.hidden) * (d(model.ffn) + d(moe.experts) * d(moe.ffn) + d(moe.shared_ffn));
  return d(model.layers) * (attention + mlp) + 2 * d(model.hidden) * d(model.vocab);
}

// Elements that one micro-batch saves.
double rough_activations(const RunConfig& config) {
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  const ModelConfig& model = config.model;
  const double attention = d(model.head_dim) * (d(model.heads) + d(model.kv_heads));
  const double experts = d(config.moe.top_k) * (d(model.hidden) + 3 * d(config.moe.ffn));
  return d(config.batch.micro) * d(model.seq) * d(model.layers) *
         (8 * d(model.hidden) + 4 * attention + 3 * d(model.ffn) + experts);
}

bool has_dense_layer(const ModelConfig& model, const MoeConfig& moe) {
  if (moe.experts == 0) return true;
  if (moe.layer_freq.size() == 1) return moe.layer_freq[0] != 1 && model.layers > 1;
  for (const int64_t is_moe : moe.layer_freq) {
    if (is_moe == 0) return true;
  }
  return false;
}

}  // namespace

void validate_model(const RunConfig& config, Violations& violations) {
  const ModelConfig& model = config.model;
  const Origin head_dim = config.origin("model.head_dim");
  if (model.heads > 0 && model.kv_heads > 0 && model.heads % model.kv_heads != 0) {
    violations.add(
        {"model.kv_heads", "model.heads"}, "model.kv_heads does not divide model.heads",
        fmt::format("{} query heads mod {} = {}; each key head serves equally many query heads",
                    model.heads, model.kv_heads, model.heads % model.kv_heads),
        "model.kv_heads = " + nearest_divisors(model.heads, model.kv_heads));
  }
  if (head_dim.kind == Origin::Kind::Derived && model.hidden % model.heads != 0) {
    violations.add({"model.heads", "model.hidden"}, "model.heads does not divide model.hidden",
                   fmt::format("model.head_dim is not set, and {} mod {} = {}", model.hidden,
                               model.heads, model.hidden % model.heads),
                   fmt::format("model.heads = {}, or set model.head_dim",
                               nearest_divisors(model.hidden, model.heads)));
  }
  if (model.head_dim % 2 != 0) {
    violations.add({"model.head_dim"}, "model.head_dim is odd",
                   "the rotary embedding turns pairs of channels",
                   "model.head_dim = " + nearest_multiples(2, model.head_dim));
  }
  if (model.heads > 0 && model.hidden > 0 && model.head_dim == 0) {
    violations.add({"model.head_dim", "model.heads", "model.hidden"}, "model.head_dim is 0",
                   fmt::format("hidden / heads = {} / {} is below 1", model.hidden, model.heads),
                   "fewer heads, or set model.head_dim");
  }
  if (model.hidden > 0 && model.ffn == 0 && has_dense_layer(model, config.moe)) {
    violations.add({"model.ffn", "model.hidden"}, "model.ffn is 0",
                   fmt::format("8/3 of {} rounded down to a multiple of 64 is 0", model.hidden),
                   "set model.ffn");
  }
  if (model.precision == "fp64" && config.run.backend == "cuda") {
    violations.add({"model.precision", "run.backend"}, "fp64 on a GPU",
                   "fp64 is for tight checks of gradients, and only the CPU backend has it",
                   "run.backend = cpu, or model.precision = fp32");
  }
  if (model.attention == "mla" && model.kv_heads != model.heads) {
    violations.add({"model.kv_heads", "model.heads", "model.attention"},
                   "grouped-query and latent attention together",
                   "latent attention has one key and value head for each query head",
                   "remove model.kv_heads");
  }
  if (rough_parameters(model, config.moe) > kMostParameters) {
    violations.add({"model.layers", "model.hidden", "model.heads", "model.head_dim", "model.ffn",
                    "model.vocab", "moe.experts", "moe.ffn"},
                   "impossible size",
                   fmt::format("the model would have about {:.1e} parameters",
                               rough_parameters(model, config.moe)),
                   "look for a size with too many digits");
  } else if (rough_activations(config) > kMostActivations) {
    violations.add(
        {"batch.micro", "model.seq", "model.layers", "model.hidden", "moe.top_k"},
        "impossible size",
        fmt::format("a micro-batch would save about {:.1e} numbers", rough_activations(config)),
        "look for a size with too many digits");
  }
}

}  // namespace ferry
