#pragma once

// Runs small enough for a unit test, on random tokens.

#include <string>
#include <vector>

#include "app/config_file.h"
#include "tests/support/temp_dir.h"

namespace ferry::testing {

/// Two layers, the second with experts. The run directory is in `dir`.
inline RunConfig small_run(const TempDir& dir, const std::vector<std::string>& more = {},
                           int64_t ranks = 1) {
  std::vector<std::string> overrides = {
      "run.dir='" + (dir / "run").string() + "'",
      "run.backend=cpu",
      "run.steps=6",
      "run.log_every=1",
      "run.eval_every=0",
      "run.eval_batches=2",
      "model.layers=2",
      "model.hidden=32",
      "model.heads=2",
      "model.kv_heads=1",
      "model.head_dim=16",
      "model.ffn=32",
      "model.vocab=64",
      "model.seq=16",
      "moe.experts=4",
      "moe.ffn=16",
      "moe.layer_freq=[0,1]",
      "batch.micro=2",
      "batch.global=8",
      "optimizer.lr=2e-3",
      "optimizer.min_lr=2e-4",
      "optimizer.warmup_steps=2",
      "checkpoint.every=0",
      "data.kind=synthetic",
      "data.train=[]",
      "data.valid=[]",
      "data.tokenizer=''",
  };
  overrides.insert(overrides.end(), more.begin(), more.end());
  return load_valid_config(std::string(FERRY_SOURCE_DIR) + "/configs/quickstart.toml", overrides,
                           ranks);
}

/// Four layers in float64 whose sizes every layout of four ranks divides, but for the vocabulary
/// and the rows of the norms: those are padded.
inline RunConfig parallel_run(const TempDir& dir, const std::vector<std::string>& layout = {},
                              int64_t ranks = 1) {
  std::vector<std::string> overrides = {
      "model.precision=fp64", "model.layers=4",   "moe.layer_freq=[0,1,1,1]",
      "model.heads=4",        "model.kv_heads=2", "model.head_dim=6",
      "model.hidden=18",      "model.vocab=65",   "model.qk_norm=head"};
  overrides.insert(overrides.end(), layout.begin(), layout.end());
  return small_run(dir, overrides, ranks);
}

}  // namespace ferry::testing
