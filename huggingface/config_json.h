#pragma once

// config.json of a Hugging Face model, in the keys that releases of the three families use.

#include <nlohmann/json.hpp>
#include <string>

#include "core/dtype.h"
#include "huggingface/model_description.h"

namespace ferry {

/// Throws as family_of. Token ids are null: the tokenizer's own files name them.
nlohmann::ordered_json to_config_json(const ModelDescription& model, DType dtype);

struct HfConfig {
  ModelDescription model;
  std::string precision;  // "bf16" or "fp32", from torch_dtype
};

/// Reads the text of a config.json; `where` names it in messages. What is missing, of a wrong type
/// or out of range, and every feature that Ferry does not have, is listed in one
/// Error(ExitCode::Usage); text that is not JSON is Error(ExitCode::Storage).
HfConfig parse_config_json(const std::string& text, const std::string& where);

/// Parses JSON strictly: a key that occurs twice is refused, with Error(ExitCode::Storage).
nlohmann::json parse_strict_json(const std::string& text, const std::string& where);

}  // namespace ferry
