#include "app/model/model_config.h"

#include "core/check.h"

namespace ferry {

std::vector<std::string> derive_defaults(ModelConfig& model, MoeConfig& moe) {
  std::vector<std::string> derived;
  const auto fill = [&](int64_t& value, int64_t from_others, const char* path) {
    if (value != 0 || from_others == 0) return;
    value = from_others;
    derived.emplace_back(path);
  };
  fill(model.kv_heads, model.heads, "model.kv_heads");
  if (model.heads > 0) fill(model.head_dim, model.hidden / model.heads, "model.head_dim");
  fill(model.ffn, model.hidden * 8 / 3 / 64 * 64, "model.ffn");
  if (moe.experts > 0) fill(moe.ffn, model.ffn, "moe.ffn");
  return derived;
}

DType dtype_of(std::string_view precision) {
  if (precision == "bf16") return DType::BF16;
  if (precision == "fp32") return DType::F32;
  if (precision == "fp64") return DType::F64;
  fail(ExitCode::Internal, "no dtype is called ", precision);
}

}  // namespace ferry
