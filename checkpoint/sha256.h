#pragma once

// SHA-256 (FIPS 180-4), for the digest that names a checkpoint and for the manifest's own digest.
// Both hash little text, so clarity comes before speed.

#include <string>
#include <string_view>

namespace ferry {

/// The digest of `text` as 64 lower-case hexadecimal digits.
std::string sha256(std::string_view text);

}  // namespace ferry
