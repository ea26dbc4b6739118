#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/graph.h"
#include "core/stream_cpu.h"

namespace ferry {
namespace {

class CpuGraph final : public Graph {
 public:
  CpuGraph(const CpuStream& stream, std::vector<Task> tasks)
      : stream_(stream), tasks_(std::make_shared<std::vector<Task>>(std::move(tasks))) {}

  void launch(Stream& stream) override {
    CHECK(&stream == &stream_, "a graph of stream '", stream_.name(), "' is launched on '",
          stream.name(), "'");
    enqueue_cpu(stream, [tasks = tasks_] {
      for (const Task& task : *tasks) task();
    });
  }
  int64_t num_nodes() const override { return std::ssize(*tasks_); }

 private:
  const CpuStream& stream_;
  std::shared_ptr<const std::vector<Task>> tasks_;
};

}  // namespace

std::unique_ptr<Graph> capture_cpu(Stream& stream, const std::function<void()>& body) {
  CpuStream& cpu = as_cpu(stream);
  return std::make_unique<CpuGraph>(cpu, cpu.capture(body));
}

}  // namespace ferry
