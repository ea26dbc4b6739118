#include "pipeline/stage_layout.h"

#include <algorithm>
#include <cctype>

#include "core/check.h"

namespace ferry {
namespace {

// Longer than any layout that is meant.
constexpr size_t kLongest = 1 << 16;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The count after the "*" at `at`, which is moved behind it; nothing if there is no legal one.
std::optional<size_t> read_count(const std::string& text, size_t& at) {
  size_t count = 0;
  const size_t begin = ++at;
  for (; at < text.size() && is_digit(text[at]) && count <= kLongest; ++at)
    count = count * 10 + static_cast<size_t>(text[at] - '0');
  if (at == begin || count == 0 || count > kLongest) return std::nullopt;
  return count;
}

std::string without_spacing(const std::string& layout) {
  std::string text;
  std::copy_if(layout.begin(), layout.end(), std::back_inserter(text),
               [](char c) { return c != ',' && c != ' '; });
  return text;
}

int64_t count_of(const std::string& text, char c) {
  return static_cast<int64_t>(std::count(text.begin(), text.end(), c));
}

// Stages of an unrolled layout without problems.
std::vector<StageLayers> stages_of(const std::string& flat) {
  std::vector<StageLayers> stages(1);
  int64_t next_layer = 0;
  for (const char c : flat) {
    if (c == '|') stages.push_back({.first_layer = next_layer});
    if (c == 'E') stages.back().embedding = true;
    if (c == 'L') stages.back().head = true;
    if (c == 't') {
      ++stages.back().num_layers;
      ++next_layer;
    }
  }
  return stages;
}

std::string stage_text(const StageLayers& stage) {
  std::string text = stage.embedding ? "E" : "";
  if (stage.num_layers > 0) text += 't';
  if (stage.num_layers > 1) text += concat('*', stage.num_layers);
  return stage.head ? text + 'L' : text;
}

}  // namespace

std::optional<std::string> unroll_layout(const std::string& layout) {
  const std::string text = without_spacing(layout);
  std::string flat;
  for (size_t at = 0; at < text.size();) {
    std::string unit(1, text[at]);
    if (text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == std::string::npos) return std::nullopt;
      // A group inside it would end at the same bracket, and is not found then.
      const std::optional<std::string> inner = unroll_layout(text.substr(at + 1, close - at - 1));
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

std::optional<int64_t> num_layout_stages(const std::string& layout) {
  const std::optional<std::string> flat = unroll_layout(layout);
  if (!flat) return std::nullopt;
  return count_of(*flat, '|') + 1;
}

std::vector<LayoutProblem> layout_problems(const std::string& layout, int64_t num_layers) {
  const std::optional<std::string> flat = unroll_layout(layout);
  if (!flat) {
    if (layout.find('m') != std::string::npos)
      return {{"has a layer for multi-token prediction (m)",
               "a model is an embedding, layers and one output layer", "a layout without m"}};
    return {{"cannot be read",
             "it consists of E, t, L and |, repeated as x*n or (...)*n without nesting",
             "\"Et*3|(tt|)*2t*3L\""}};
  }
  std::vector<LayoutProblem> problems;
  if (count_of(*flat, 'E') != 1 || count_of(*flat, 'L') != 1 || flat->front() != 'E' ||
      flat->back() != 'L')
    problems.push_back({"does not begin with E and end with L",
                        "written out it is " + flat->substr(0, 60), "E first, L last, each once"});
  if (const int64_t count = count_of(*flat, 't'); count != num_layers)
    problems.push_back({"has the wrong number of layers",
                        concat(count, " times t for ", num_layers, " layers"),
                        concat(num_layers, " times t"), true});
  return problems;
}

std::vector<StageLayers> parse_layout(const std::string& layout, int64_t num_layers) {
  const std::vector<LayoutProblem> problems = layout_problems(layout, num_layers);
  if (!problems.empty())
    fail(ExitCode::Usage, "pipeline layout '", layout.substr(0, 60), "' ", problems[0].what,
         "\n  why : ", problems[0].why, "\n  try : ", problems[0].fix);
  std::vector<StageLayers> stages = stages_of(*unroll_layout(layout));
  check_stages(stages, num_layers);
  return stages;
}

std::vector<StageLayers> even_stages(int64_t num_layers, int64_t num_stages) {
  CHECK(num_stages >= 1 && num_layers % num_stages == 0, num_layers, " layers in ", num_stages,
        " equal stages");
  std::vector<StageLayers> stages(static_cast<size_t>(num_stages));
  const int64_t size = num_layers / num_stages;
  for (int64_t i = 0; i < num_stages; ++i)
    stages[static_cast<size_t>(i)] = {.first_layer = i * size, .num_layers = size};
  stages.front().embedding = true;
  stages.back().head = true;
  check_stages(stages, num_layers);
  return stages;
}

std::vector<StageLayers> stages_of_rank(std::span<const StageLayers> stages, int rank,
                                        int num_ranks) {
  const size_t step = static_cast<size_t>(num_ranks);
  CHECK(rank >= 0 && rank < num_ranks, "rank ", rank, " of ", num_ranks);
  CHECK(!stages.empty() && stages.size() % step == 0, stages.size(), " stages on ", num_ranks,
        " pipeline ranks");
  std::vector<StageLayers> chunks;
  for (size_t i = static_cast<size_t>(rank); i < stages.size(); i += step)
    chunks.push_back(stages[i]);
  return chunks;
}

std::string layout_text(std::span<const StageLayers> stages) {
  std::string text;
  for (size_t i = 0; i < stages.size(); ++i) text += (i > 0 ? "|" : "") + stage_text(stages[i]);
  return text;
}

void check_stages(std::span<const StageLayers> stages, int64_t num_layers) {
  CHECK(!stages.empty(), "a model has at least one stage");
  int64_t next_layer = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageLayers& stage = stages[i];
    CHECK(stage.num_layers >= 0 && stage.first_layer == next_layer, "stage ", i, " of ",
          stages.size(), " holds ", stage.num_layers, " layers from layer ", stage.first_layer,
          ", but layer ", next_layer, " comes next");
    CHECK(stage.embedding == (i == 0), "stage ", i, " of ", stages.size(),
          stage.embedding ? " has an embedding" : " has no embedding");
    CHECK(stage.head == (i + 1 == stages.size()), "stage ", i, " of ", stages.size(),
          stage.head ? " has a head" : " has no head");
    next_layer += stage.num_layers;
  }
  CHECK(next_layer == num_layers, "the stages hold ", next_layer, " of ", num_layers, " layers");
}

}  // namespace ferry
