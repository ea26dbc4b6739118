#include "app/launch_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "core/check.h"
#include "tests/support/run_ranks.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Started {
  std::string program = "ferry 1.0 abc";
  RunConfig config;
};

// The messages of all ranks; empty where a rank found nothing to refuse.
std::multiset<std::string> messages(const std::vector<Started>& ranks) {
  std::mutex mutex;
  std::multiset<std::string> all;
  testing::run_ranks(static_cast<int>(ranks.size()), [&](Group&, Control& control) {
    const Started& own = ranks[static_cast<size_t>(control.rank())];
    std::string text;
    try {
      require_same_job(control, concat("node-", control.rank()), own.program, own.config);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      text = error.what();
    }
    std::lock_guard lock(mutex);
    all.insert(text);
  });
  return all;
}

// The one message that all ranks must give.
std::string message(const std::vector<Started>& ranks) {
  const auto all = messages(ranks);
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 1u);
  return *all.begin();
}

TEST(RequireSameJob, AcceptsEqualRanks) {
  EXPECT_EQ(message({Started{}}), "");
  EXPECT_EQ(message({Started{}, Started{}, Started{}}), "");
}

TEST(RequireSameJob, NamesTheFirstRankAndTheKeys) {
  std::vector<Started> ranks(4);
  ranks[2].config.model.layers = 7;
  ranks[2].config.run.name = "other";
  ranks[3].config.model.layers = 9;
  EXPECT_THAT(message(ranks),
              AllOf(HasSubstr("error: the ranks of this job were not started alike"),
                    HasSubstr("--> rank 2 on node-2"), HasSubstr("model.layers = 7, where rank 0 "),
                    HasSubstr("run.name = \"other\", where rank 0 has \"\""),
                    Not(HasSubstr("rank 3")), HasSubstr("try : ")));
}

TEST(RequireSameJob, NamesAnotherProgram) {
  std::vector<Started> ranks(2);
  ranks[1].program = "ferry 1.0 def";
  EXPECT_THAT(message(ranks), HasSubstr("program = ferry 1.0 def, where rank 0 has ferry 1.0 abc"));
}

TEST(RequireSameJob, NamesAtMostEightKeys) {
  std::vector<Started> ranks(2);
  auto& config = ranks[1].config;
  config.model.layers = config.model.hidden = config.model.heads = config.model.kv_heads = 99;
  config.model.head_dim = config.model.ffn = config.model.vocab = config.model.seq = 99;
  config.run.steps = config.run.seed = 99;
  EXPECT_THAT(message(ranks), HasSubstr("and 2 more"));
}

// Where a config came from may differ between hosts.
TEST(RequireSameJob, OriginsDoNotCount) {
  std::vector<Started> ranks(2);
  ranks[1].config.origins["model.layers"] = {.kind = Origin::Kind::CommandLine};
  EXPECT_EQ(message(ranks), "");
}

}  // namespace
}  // namespace ferry
