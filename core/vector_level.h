#pragma once

// Which vector instructions host loops may use. The program is compiled for the processors that all
// its nodes share; loops that gain from wider vectors exist several times, and one is chosen as the
// program runs. All give the same bits.

#include <string_view>

namespace ferry {

enum class VectorLevel { Portable, Avx2, Avx512 };

/// "portable", "avx2", "avx512".
std::string_view name_of(VectorLevel level);
/// The widest that this processor has; at most what the environment variable FERRY_VECTOR_LEVEL
/// names. Error(ExitCode::Usage) if it names none of the three. Decided at the first call.
VectorLevel vector_level();

}  // namespace ferry
