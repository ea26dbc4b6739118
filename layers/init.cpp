#include "layers/init.h"

#include <cmath>

#include "core/ops/elementwise.h"

namespace ferry {

uint32_t random_site(std::string_view name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

void allocate_value(Stream& stream, Parameter& parameter, uint64_t seed) {
  parameter.value = Tensor::empty(stream, "parameters", parameter.shape, parameter.dtype);
  if (parameter.init.std > 0) {
    const RandomKey key{seed, 0, random_site(parameter.name)};
    fill_normal(stream, parameter.value, parameter.init.std, key, 0);
  } else {
    fill(stream, parameter.value, parameter.init.constant);
  }
}

double output_init_std(double std, int64_t layers) {
  return std / std::sqrt(2.0 * static_cast<double>(layers));
}

}  // namespace ferry
