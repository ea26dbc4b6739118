// parallel.layout: which layers each stage of the pipeline holds; see pipeline/stage_layout.h.

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "app/nearest.h"
#include "app/validate.h"
#include "pipeline/stage_layout.h"

namespace ferry {

void validate_layout(const RunConfig& config, Violations& violations) {
  const std::string& layout = config.parallel.layout;
  if (layout.empty()) return;
  for (const LayoutProblem& problem : layout_problems(layout, config.model.layers)) {
    std::vector<std::string> keys = {"parallel.layout"};
    if (problem.about_layers) keys.push_back("model.layers");
    violations.add(keys, "parallel.layout " + problem.what, problem.why, problem.fix);
  }
  const std::optional<int64_t> stages = num_layout_stages(layout);
  if (!stages) return;
  if (*stages % config.parallel.pipeline != 0) {
    violations.add({"parallel.layout", "parallel.pipeline"},
                   "parallel.pipeline does not divide the stages of parallel.layout",
                   fmt::format("{} stages mod {} = {}", *stages, config.parallel.pipeline,
                               *stages % config.parallel.pipeline),
                   "parallel.pipeline = " + nearest_divisors(*stages, config.parallel.pipeline));
  }
  if (config.parallel.virtual_stages > 1) {
    violations.add({"parallel.virtual_stages", "parallel.layout"},
                   "parallel.virtual_stages and parallel.layout together",
                   "a layout has as many virtual stages as its stages over parallel.pipeline",
                   "parallel.virtual_stages = 1");
  }
}

}  // namespace ferry
