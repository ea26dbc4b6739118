#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using testing::expect_each;
using testing::violations;

TEST(Validate, Layout) {
  const std::string unread = "parallel.layout cannot be read";
  for (const char* illegal : {"Ett|ttX", "E(tt|)ttL", "E(t*2|*2", "Et*|tttL", "Et*0ttttL",
                              "E((t)*2)*2L", "Et*99999999999999999999L", "Et*4)L"}) {
    expect_each(
        {{{std::string("parallel.layout='") + illegal + "'"}, unread, "repeated as", "Et*3"}});
  }
  expect_each({
      {{"parallel.layout='Ettt|tmL'"},
       "parallel.layout has a layer for multi-token prediction (m)",
       "one output layer",
       "without m"},
      {{"parallel.layout='tE|tttL'"},
       "parallel.layout does not begin with E and end with L",
       "tE|tttL",
       "E first"},
      {{"parallel.layout='EEtttt|L'"},
       "parallel.layout does not begin with E and end with L",
       "EEtttt|L",
       "each once"},
      {{"parallel.layout='Et*3|L'"},
       "parallel.layout has the wrong number of layers",
       "3 times t for 4",
       "4 times"},
      {{"parallel.layout='Et|t|ttL'", "parallel.pipeline=2"},
       "parallel.pipeline does not divide the stages of parallel.layout",
       "3 stages mod 2 = 1",
       "1 or 3",
       2},
      {{"parallel.layout='Et|t|t|tL'", "parallel.pipeline=2", "parallel.virtual_stages=2"},
       "parallel.virtual_stages and parallel.layout together",
       "over parallel.pipeline",
       "= 1",
       2},
  });
  const std::map<std::string, int64_t> legal = {
      {"Et*2|t*2L", 2}, {"E,tt | tt,L", 2}, {"E(t|)*4L", 5}, {"E||ttttL", 3}};
  for (const auto& [layout, stages] : legal) {
    EXPECT_THAT(violations({"parallel.layout='" + layout + "'",
                            "parallel.pipeline=" + std::to_string(stages)},
                           stages),
                ::testing::IsEmpty())
        << layout;
  }
}

}  // namespace
}  // namespace ferry
