#include "core/check.h"

namespace ferry::detail {

void check_failed(const char* expression, const char* file, int line, const std::string& message) {
  std::string text = concat("internal error: CHECK(", expression, ") failed at ", file, ":", line);
  if (!message.empty()) text += ": " + message;
  throw Error(ExitCode::Internal, text);
}

}  // namespace ferry::detail
