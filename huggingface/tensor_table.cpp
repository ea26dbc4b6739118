#include "huggingface/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"

namespace ferry {
namespace {

constexpr size_t kMaxLines = 40;

std::string text_of(const TensorType& type) { return concat(name_of(type.dtype), " ", type.shape); }

}  // namespace

void require_same_tensors(const std::string& what, const std::map<std::string, Shape>& wanted,
                          const std::map<std::string, TensorType>& found,
                          const std::vector<DType>& dtypes) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& name, const std::string& expected,
                       const std::string& actual) {
    lines.push_back(fmt::format("\n  {:60}  {:28}  {}", name, expected, actual));
  };
  std::string allowed;
  for (const DType dtype : dtypes) allowed += concat(allowed.empty() ? "" : "|", name_of(dtype));
  for (const auto& [name, shape] : wanted) {
    const std::string expected = concat(allowed, " ", shape);
    const auto other = found.find(name);
    if (other == found.end()) {
      add(name, expected, "missing");
    } else if (other->second.shape != shape ||
               std::find(dtypes.begin(), dtypes.end(), other->second.dtype) == dtypes.end()) {
      add(name, expected, text_of(other->second));
    }
  }
  for (const auto& [name, type] : found)
    if (!wanted.contains(name)) add(name, "not of this model", text_of(type));
  if (lines.empty()) return;
  std::string table;
  for (size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i) table += lines[i];
  if (lines.size() > kMaxLines)
    table += fmt::format("\n  ... and {} more", lines.size() - kMaxLines);
  fail(ExitCode::Storage, "error: ", what,
       fmt::format("\n  {:60}  {:28}  {}", "tensor", "expected", "found"), table);
}

}  // namespace ferry
