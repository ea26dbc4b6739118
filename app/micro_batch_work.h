#pragma once

// The micro-batches that are under way through the parts of the model that this rank holds, as a
// pipeline schedule asks for them: for each part and micro-batch a Pass with its Tape.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "app/activation_memory.h"
#include "app/batch_feed.h"
#include "app/model/gpt.h"
#include "pipeline/executor.h"

namespace ferry {

/// What all micro-batches of a step share.
struct StepContext {
  StepTotals& totals;
  RandomKey key;                       // of the step
  int64_t first_sample = 0;            // position in the run of the first sample of the step
  bool training = true;                // false in evaluation: nothing is saved
  ActivationMemory* memory = nullptr;  // where saved tensors live; null: on the device
  int64_t num_graphed = 0;             // so many micro-batches, the first ones, may be graphs
};

/// A micro-batch on its way through a part of the model.
struct PassUnderWay {
  PassUnderWay(std::shared_ptr<const Batch> batch, Stream& stream, const StepContext& context,
               PassId id);

  std::shared_ptr<const Batch> batch;
  Tape tape;
  Pass pass;
};

class GraphedMicroBatch;

class MicroBatchWork final : public StageWork {
 public:
  /// `before_backward(chunk, micro)` is told of each backward pass that is about to begin; it may
  /// be empty. `graph` runs the micro-batches that may be graphs; null: there are none. All must
  /// outlive this object.
  MicroBatchWork(const std::vector<std::unique_ptr<Gpt>>& chunks, Stream& stream, BatchFeed& feed,
                 BlockHooks& hooks, const StepContext& context,
                 std::function<void(int, int)> before_backward = {},
                 GraphedMicroBatch* graph = nullptr);

  Tensor forward(int chunk, int micro, const Tensor& x) override;
  Tensor backward(int chunk, int micro, const Tensor& dy) override;

  /// Labels that counted, in the micro-batches so far.
  double num_loss_tokens() const { return num_loss_tokens_; }
  /// Seconds that the host waited for data.
  double data_seconds() const { return data_seconds_; }
  /// CHECKs that every micro-batch that went forward came back.
  void check_done() const;

 private:
  /// Forward and backward at once, if this micro-batch is a graph.
  bool run_graph(int chunk, int micro);
  std::shared_ptr<const Batch> batch(int micro);

  const std::vector<std::unique_ptr<Gpt>>& chunks_;
  Stream& stream_;
  BatchFeed& feed_;
  BlockHooks& hooks_;
  StepContext context_;
  std::function<void(int, int)> before_backward_;
  GraphedMicroBatch* graph_;
  std::set<int> went_back_;                                // micro-batches, inside their forward
  std::map<std::pair<int, int>, PassUnderWay> under_way_;  // by chunk and micro-batch
  std::map<int, std::shared_ptr<const Batch>> batches_;    // that have not been in every chunk
  int num_read_ = 0;
  double num_loss_tokens_ = 0;
  double data_seconds_ = 0;
};

}  // namespace ferry
