#pragma once

// Between the tables of a configuration and what config.json can say.

#include <string>

#include "app/run_config.h"
#include "huggingface/config_json.h"

namespace ferry {

/// Throws Error(ExitCode::Usage) with every reason why no supported architecture has the model.
ModelDescription describe_model(const RunConfig& config);

/// A configuration with the model's tables, and stand-ins for what it does not decide: run.steps,
/// data.train, the optimizer's.
std::string model_toml(const HfConfig& config);

}  // namespace ferry
