#include "core/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace ferry {

namespace {

std::string shortest(double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  // 1e-05 as people write it: 1e-5.
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text[exponent + 2] == '0') text.erase(exponent + 2, 1);
  return text;
}

// 1e8 is a size here: 100000000.
std::string bound(double value) {
  const bool is_size = value == std::floor(value) && std::abs(value) < 1e15;
  return is_size ? std::to_string(static_cast<int64_t>(value)) : shortest(value);
}

}  // namespace

std::string Range::text() const {
  const bool has_low = std::isfinite(low);
  const bool has_high = std::isfinite(high);
  if (!has_low && !has_high) return "";
  if (has_low && has_high) {
    return std::string("in ") + (low_open ? "(" : "[") + bound(low) + ", " + bound(high) +
           (high_open ? ")" : "]");
  }
  if (has_low) return (low_open ? "above " : "at least ") + bound(low);
  return (high_open ? "below " : "at most ") + bound(high);
}

std::string to_toml(bool value) { return value ? "true" : "false"; }

std::string to_toml(int64_t value) { return std::to_string(value); }

std::string to_toml(double value) {
  std::string text = shortest(value);
  // TOML reads a number as a float only if it has a point, an exponent or a name.
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string to_toml(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr char kHex[] = "0123456789ABCDEF";
      text += "\\u00";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    } else {
      text += c;
    }
  }
  return text + '"';
}

int edit_distance(std::string_view a, std::string_view b) {
  // rows[i % 3][j] is the distance of the first i characters of a and the first j of b.
  std::vector<int> rows[3];
  for (std::vector<int>& row : rows) row.resize(b.size() + 1);
  std::iota(rows[0].begin(), rows[0].end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<int>& row = rows[i % 3];
    const std::vector<int>& above = rows[(i - 1) % 3];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], rows[(i - 2) % 3][j - 2] + 1);
    }
  }
  return rows[a.size() % 3][b.size()];
}

std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates) {
  std::optional<std::string> best;
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(name, candidate);
    const int limit =
        std::max<int>(1, static_cast<int>(std::max(name.size(), candidate.size()) / 3));
    if (distance <= limit && distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace ferry
