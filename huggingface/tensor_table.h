#pragma once

// The tensors that a model needs, beside those that a file or checkpoint has.

#include <map>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace ferry {

struct TensorType {
  DType dtype = DType::F32;
  Shape shape;
};

/// Throws Error(ExitCode::Storage) that begins with `what` and has a table of every tensor that is
/// missing, not of the model, of another shape, or of a dtype that is none of `dtypes`. The table
/// ends after 40 lines with the number of those left out.
void require_same_tensors(const std::string& what, const std::map<std::string, Shape>& wanted,
                          const std::map<std::string, TensorType>& found,
                          const std::vector<DType>& dtypes);

}  // namespace ferry
