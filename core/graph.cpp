#include "core/graph.h"

#include "core/device.h"

namespace ferry {

std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& body,
                               Unreleased unreleased) {
  return stream.device().is_cpu() ? capture_cpu(stream, body)
                                  : capture_cuda(stream, body, unreleased);
}

}  // namespace ferry
