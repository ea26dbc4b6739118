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

EvaluationResult evaluate(Gpt& model, Stream& stream, const RunConfig& config,
                          std::shared_ptr<const TokenDataset> dataset, Group& dp,
                          int64_t num_batches) {
  LoaderConfig loader_config;
  loader_config.micro = config.batch.micro;
  loader_config.dp_rank = dp.rank();
  loader_config.dp_size = dp.size();
  const int64_t per_step = loader_config.micro * dp.size();
  loader_config.global = per_step;
  const int64_t wanted = num_batches * config.global_batch(dp.size());
  const int64_t num_micro = std::min(wanted, dataset->size()) / per_step;
  if (num_micro == 0)
    fail(ExitCode::Data, "error: the validation data has ", dataset->size(),
         " samples, but one micro-batch on every rank takes ", per_step,
         "\n  try : more text in data.valid, or a smaller batch.micro");

  Loader loader(std::move(dataset), loader_config);
  BatchFeed feed(stream, loader);
  StepTotals totals;
  BlockHooks no_hooks;
  double tokens = 0;
  for (int64_t i = 0; i < num_micro; ++i) {
    const Batch batch = feed.next(0);
    Tape off(Tape::Mode::Off);
    Pass pass(stream, off, batch, totals, {}, false);
    model.forward(pass, no_hooks);
    tokens += static_cast<double>(batch.num_loss_tokens);
  }
  std::vector<double> sums{read_back_as_double(stream, totals.all().at("loss"))[0], tokens};
  sum_over_ranks(sums, dp, stream);
  return {sums[0] / sums[1], sums[1]};
}

}  // namespace ferry
