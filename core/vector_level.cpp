#include "core/vector_level.h"

#include <algorithm>
#include <cstdlib>

#include "core/check.h"

namespace ferry {
namespace {

constexpr VectorLevel kLevels[] = {VectorLevel::Portable, VectorLevel::Avx2, VectorLevel::Avx512};

VectorLevel widest_of_processor() {
  // True only if the operating system saves these registers, too. The first AVX-512 of servers has
  // all four parts.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return VectorLevel::Avx512;
  if (__builtin_cpu_supports("avx2")) return VectorLevel::Avx2;
  return VectorLevel::Portable;
}

VectorLevel decide() {
  const VectorLevel widest = widest_of_processor();
  const char* wanted = std::getenv("FERRY_VECTOR_LEVEL");
  if (wanted == nullptr) return widest;
  for (const VectorLevel level : kLevels)
    if (name_of(level) == wanted) return std::min(level, widest);
  fail(ExitCode::Usage, "error: environment variable FERRY_VECTOR_LEVEL is '", wanted,
       "'\n  why : it limits the vector instructions of loops on the host\n"
       "  try : FERRY_VECTOR_LEVEL=portable, avx2 or avx512, or unset it");
}

}  // namespace

std::string_view name_of(VectorLevel level) {
  switch (level) {
    case VectorLevel::Portable:
      return "portable";
    case VectorLevel::Avx2:
      return "avx2";
    case VectorLevel::Avx512:
      return "avx512";
  }
  return "?";
}

VectorLevel vector_level() {
  static const VectorLevel level = decide();
  return level;
}

}  // namespace ferry
