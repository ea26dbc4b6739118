#include "app/evaluation.h"

#include <algorithm>

#include "app/batch_feed.h"
#include "app/data_spec.h"
#include "app/host_sum.h"
#include "core/host_copy.h"

namespace ferry {

std::shared_ptr<const TokenDataset> open_validation_data(const RunConfig& config, int64_t ranks) {
  if (config.data.kind != "synthetic" && config.data.valid.empty() && config.data.split.empty())
    return nullptr;
  return open_dataset(validation_data_spec(config, ranks));
}

EvaluationResult evaluate(ParallelModel& model, std::shared_ptr<const TokenDataset> dataset,
                          int64_t num_batches, BlockHooks& hooks) {
  const RunConfig& config = model.config();
  const MeshGroups& groups = model.groups();
  const Mesh& mesh = groups.mesh();
  Stream& stream = model.stream();
  LoaderConfig share = loader_config(config, groups);
  const int64_t per_step = share.micro * mesh.dp();
  share.global = per_step;
  const int64_t wanted = num_batches * config.global_batch(mesh.world());
  const int64_t num_micro = std::min(wanted, dataset->size()) / per_step;
  if (num_micro == 0)
    fail(ExitCode::Data, "error: the validation data has ", dataset->size(),
         " samples, but one micro-batch on every data-parallel rank takes ", per_step,
         "\n  try : more text in data.valid, or a smaller batch.micro");

  Loader loader(std::move(dataset), share);
  BatchFeed feed(stream, loader);
  StepTotals totals;
  const ParallelModel::Input input =
      model.run(num_micro, feed, hooks, {totals, {}, 0, /*training=*/false});
  std::vector<double> sums{read_total(stream, totals, "loss"), input.num_loss_tokens};
  sum_over_ranks(sums, groups.world(), stream);
  return {sums[0] / sums[1], sums[1]};
}

}  // namespace ferry
