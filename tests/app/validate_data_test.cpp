#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using testing::expect_each;
using testing::violations;

TEST(Validate, Data) {
  expect_each({
      {{"data.train=[]"}, "no training data", "empty", "ferry data build"},
      {{"data.valid=[]"}, "evaluation without validation data", "neither", "run.eval_every = 0"},
      {{"data.train=[0.3,a,b]"}, "data.train mixes paths and numbers", "1 numbers among 3", "[0.7"},
      {{"data.valid=[a,0.3]"}, "data.valid mixes paths and numbers", "1 numbers among 2", "[0.7"},
      {{"data.train=[-1,a,2,b]"},
       "data.train has weights that cannot be used",
       "at least 0",
       "[0.7"},
      {{"data.train=[0,a]"}, "data.train has weights that cannot be used", "above 0", "[0.7"},
      {{"data.split='9,x'", "data.valid=[]"},
       "data.split cannot be read",
       "relative sizes",
       "969,30,1"},
      {{"data.split='1,1,1,1'", "data.valid=[]"},
       "data.split cannot be read",
       "relative sizes",
       "969,30,1"},
      {{"data.split='0,0,0'", "data.valid=[]"},
       "data.split cannot be read",
       "relative sizes",
       "969,30,1"},
      {{"data.split='99,1,0'"}, "data.split and data.valid together", "both", "remove"},
  });
  EXPECT_THAT(violations({"data.kind=synthetic", "data.train=[]", "data.valid=[]"}),
              ::testing::IsEmpty());
  EXPECT_THAT(violations({"data.split='99,1,0'", "data.valid=[]"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"data.train=[0.3,a,0.7,b]"}), ::testing::IsEmpty());
}

}  // namespace
}  // namespace ferry
