#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using testing::expect_each;
using testing::violations;

TEST(Validate, Model) {
  expect_each({
      {{"model.kv_heads=3"},
       "model.kv_heads does not divide model.heads",
       "4 query heads mod 3 = 1",
       "2 or 4"},
      {{"model.heads=5", "model.kv_heads=5", "model.head_dim=0"},
       "model.heads does not divide model.hidden",
       "128 mod 5 = 3",
       "model.heads = 4 or 8"},
      {{"model.head_dim=31"}, "model.head_dim is odd", "pairs", "30 or 32"},
      {{"model.hidden=4", "model.heads=8", "model.kv_heads=8", "model.head_dim=0"},
       "model.head_dim is 0",
       "4 / 8",
       "fewer heads"},
      {{"model.hidden=16", "model.ffn=0", "moe.layer_freq=2"},
       "model.ffn is 0",
       "8/3 of 16",
       "set model.ffn"},
      {{"model.precision=fp64", "run.backend=cuda"},
       "fp64 on a GPU",
       "only the CPU",
       "run.backend = cpu"},
      {{"model.attention=mla"},
       "grouped-query and latent attention together",
       "one key and value head",
       "remove"},
      {{"model.hidden=10000000", "model.vocab=100000000"},
       "impossible size",
       "e+15 parameters",
       "too many digits"},
      {{"model.seq=100000000", "batch.micro=1000000"},
       "impossible size",
       "numbers",
       "too many digits"},
  });
  EXPECT_THAT(violations({"model.precision=fp64", "run.backend=auto"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"model.hidden=16", "model.ffn=0"}), ::testing::IsEmpty())
      << "no dense layer";
}

}  // namespace
}  // namespace ferry
