// parallel.layout: which layers each stage of the pipeline holds. E is the embedding, t one layer,
// L the output layer and loss; "|" separates stages; x*n and (...)*n repeat; commas and spaces mean
// nothing. Stage i belongs to pipeline rank i mod pipeline.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

#include "app/nearest.h"
#include "app/validate.h"

namespace ferry {

namespace {

// Longer than any layout that is meant.
constexpr size_t kLongest = 1 << 16;

// The count after the "*" at `at`, which is moved behind it; nothing if there is no legal one.
std::optional<size_t> read_count(const std::string& text, size_t& at) {
  size_t count = 0;
  const size_t begin = ++at;
  for (;
       at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) && count <= kLongest;
       ++at) {
    count = count * 10 + static_cast<size_t>(text[at] - '0');
  }
  if (at == begin || count == 0 || count > kLongest) return std::nullopt;
  return count;
}

// Every repetition written out; nothing if brackets, counts or characters are wrong.
std::optional<std::string> unroll(const std::string& layout) {
  std::string text;
  std::copy_if(layout.begin(), layout.end(), std::back_inserter(text),
               [](char c) { return c != ',' && c != ' '; });
  std::string flat;
  for (size_t at = 0; at < text.size();) {
    std::string unit(1, text[at]);
    if (text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == std::string::npos) return std::nullopt;
      std::optional<std::string> inner = unroll(text.substr(at + 1, close - at - 1));
      if (!inner || close + 1 >= text.size() || text[close + 1] != '*') return std::nullopt;
      unit = *inner;
      at = close;
    } else if (unit.find_first_of("EtL|") == std::string::npos) {
      return std::nullopt;
    }
    size_t count = 1;
    if (++at < text.size() && text[at] == '*') {
      const std::optional<size_t> read = read_count(text, at);
      if (!read) return std::nullopt;
      count = *read;
    }
    if (flat.size() + unit.size() * count > kLongest) return std::nullopt;
    for (size_t i = 0; i < count; ++i) flat += unit;
  }
  return flat;
}

}  // namespace

void validate_layout(const RunConfig& config, Violations& violations) {
  const std::string& layout = config.parallel.layout;
  if (layout.empty()) return;
  const std::optional<std::string> flat = unroll(layout);
  if (!flat) {
    violations.add({"parallel.layout"}, "parallel.layout cannot be read",
                   "it consists of E, t, L and |, repeated as x*n or (...)*n without nesting",
                   "\"Et*3|(tt|)*2t*3L\"");
    return;
  }
  const auto count = [&](char c) {
    return static_cast<int64_t>(std::count(flat->begin(), flat->end(), c));
  };
  if (count('E') != 1 || count('L') != 1 || flat->front() != 'E' || flat->back() != 'L') {
    violations.add({"parallel.layout"}, "parallel.layout does not begin with E and end with L",
                   fmt::format("written out it is {:.60}", *flat), "E first, L last, each once");
  }
  if (count('t') != config.model.layers) {
    violations.add({"parallel.layout", "model.layers"},
                   "parallel.layout has the wrong number of layers",
                   fmt::format("{} times t for {} layers", count('t'), config.model.layers),
                   fmt::format("{} times t", config.model.layers));
  }
  const int64_t stages = count('|') + 1;
  if (stages % config.parallel.pipeline != 0) {
    violations.add({"parallel.layout", "parallel.pipeline"},
                   "parallel.pipeline does not divide the stages of parallel.layout",
                   fmt::format("{} stages mod {} = {}", stages, config.parallel.pipeline,
                               stages % config.parallel.pipeline),
                   "parallel.pipeline = " + nearest_divisors(stages, config.parallel.pipeline));
  }
  if (config.parallel.virtual_stages > 1) {
    violations.add({"parallel.virtual_stages", "parallel.layout"},
                   "parallel.virtual_stages and parallel.layout together",
                   "a layout has as many virtual stages as its stages over parallel.pipeline",
                   "parallel.virtual_stages = 1");
  }
}

}  // namespace ferry
