#include "core/graph.h"

#include <utility>

#include "core/device.h"

namespace ferry {
namespace {

class CpuGraph final : public Graph {
 public:
  explicit CpuGraph(std::function<void()> body) : body_(std::move(body)) {}
  void launch(Stream&) override { body_(); }
  int64_t num_nodes() const override { return 0; }

 private:
  std::function<void()> body_;
};

}  // namespace

std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& body) {
  if (stream.device().is_cpu()) return std::make_unique<CpuGraph>(body);
  return capture_cuda(stream, body);
}

}  // namespace ferry
