#include "app/data_spec.h"

#include "app/data/tokenizer.h"
#include "core/check.h"

namespace ferry {
namespace {

DataSpec common_spec(const RunConfig& config) {
  DataSpec spec;
  spec.kind = config.data.kind;
  spec.split = config.data.split;
  spec.seq = config.model.seq;
  spec.vocab = config.model.vocab;
  spec.seed = static_cast<uint64_t>(config.run.seed);
  if (!config.data.tokenizer.empty()) {
    const auto tokenizer = open_tokenizer(config.data.tokenizer);
    if (tokenizer->vocab_size() > config.model.vocab)
      fail(ExitCode::Usage, "error: model.vocab = ", config.model.vocab, " is too small for ",
           tokenizer->name(), "\n  why : its ids go up to ", tokenizer->vocab_size() - 1,
           "\n  try : model.vocab=", tokenizer->vocab_size(), " or more");
    spec.eod = tokenizer->eod();
  }
  return spec;
}

}  // namespace

DataSpec training_data_spec(const RunConfig& config, int64_t ranks) {
  DataSpec spec = common_spec(config);
  spec.paths = config.data.train;
  spec.split_index = 0;
  spec.num_samples = config.run.steps * config.global_batch(ranks);
  return spec;
}

DataSpec validation_data_spec(const RunConfig& config, int64_t ranks) {
  DataSpec spec = common_spec(config);
  spec.split_index = 1;
  if (config.data.valid.empty()) {
    spec.paths = config.data.train;
  } else {
    spec.paths = config.data.valid;
    spec.split.clear();
  }
  spec.num_samples = config.run.eval_batches * config.global_batch(ranks);
  return spec;
}

LoaderConfig loader_config(const RunConfig& config, const MeshGroups& groups) {
  LoaderConfig loader;
  loader.micro = config.batch.micro;
  loader.global = config.global_batch(groups.mesh().world());
  loader.dp_rank = groups.coordinates().dp;
  loader.dp_size = groups.mesh().dp();
  return loader;
}

}  // namespace ferry
