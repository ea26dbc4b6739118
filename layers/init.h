#pragma once

// Initial values. Every parameter draws from its own random site, named by its global name, and
// element i of the whole parameter from counter i: the values depend on the seed alone, never on
// the layout of ranks.

#include <string_view>

#include "core/module.h"

namespace ferry {

/// The random site of a name (FNV-1a).
uint32_t random_site(std::string_view name);

/// Allocates parameter.value and fills it as parameter.init says. Normal values are rounded from
/// FP32, so a bf16 model starts from the rounded values of the FP32 model. Padding rows of a part
/// are zero.
void allocate_value(Stream& stream, Parameter& parameter, uint64_t seed);

/// Standard deviations as in Megatron-LM: `std` everywhere, and std / sqrt(2 * layers) for linears
/// that write to the residual stream.
double output_init_std(double std, int64_t layers);

}  // namespace ferry
