#include "app/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "app/config_file.h"
#include "core/check.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

std::string source(const std::string& path) { return std::string(FERRY_SOURCE_DIR) + "/" + path; }

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(RunConfig, ResolvedTomlReadsBackToTheSameValues) {
  const testing::TempDir directory;
  const RunConfig config =
      load_config(source("configs/olmoe_1b_7b.toml"),
                  {"run.stop_at_step=5", "run.name='a\"b'", "optimizer.lr=0.1",
                   "data.train=[0.3,a,0.7,b]", "debug.throw_at={rank=0,step=2}",
                   "optimizer.offload.fraction=auto", "moe.router.aux_coeff=[0.1]"});
  const std::string path = (directory / "resolved.toml").string();
  std::ofstream(path) << resolved_toml(config);
  EXPECT_EQ(differences(config, load_config(path, {})), std::vector<std::string>{});
}

TEST(RunConfig, ResolvedTomlHasEveryValueWithItsOrigin) {
  const std::string path = source("configs/quickstart.toml");
  const RunConfig config = load_config(path, {"run.seed=9"});
  const std::string text = resolved_toml(config);
  visit_values(config, [&](const std::string&, const Field& field, const auto&) {
    EXPECT_THAT(text, HasSubstr(std::string(field.key) + " ")) << field.key;
  });
  EXPECT_THAT(text, ::testing::ContainsRegex("\nseed = 9 +# command line\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\nnorm = \"rmsnorm\" +# default\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\nlayers = 4 +# .*quickstart.toml:[0-9]+:1\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\n# stop_at_step is not set +# default\n"));
}

TEST(RunConfig, DecidedTomlLeavesDefaultsOut) {
  const std::string text = decided_toml(load_config(source("configs/quickstart.toml"), {}));
  EXPECT_THAT(text, HasSubstr("\nlayers = 4 "));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("paged_stash")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("# default")));
}

TEST(RunConfig, DocumentationIsUpToDate) {
  EXPECT_EQ(text_of(source("docs/config.md")), config_markdown())
      << "write it anew: ferry config --markdown > docs/config.md";
}

TEST(RunConfig, AWordIsDocumentedAsALegalValue) {
  EXPECT_THAT(config_markdown(),
              HasSubstr("| `fraction` | number | `1.0` | in [0, 1] or `\"auto\"` | part"));
}

TEST(RunConfig, EveryFieldIsDocumented) {
  const RunConfig config;
  visit_values(config, [](const std::string& path, const Field& field, const auto&) {
    EXPECT_FALSE(field.doc.empty()) << path;
  });
}

TEST(RunConfig, DataParallelSizeAndMicroBatches) {
  RunConfig config;
  config.batch.micro = 2;
  EXPECT_EQ(config.data_parallel(4), 4);
  EXPECT_EQ(config.global_batch(4), 8);
  EXPECT_EQ(config.num_microbatches(4), 1);
  config.batch.global = 32;
  EXPECT_EQ(config.num_microbatches(4), 4);
  config.parallel.tensor = 2;
  EXPECT_EQ(config.data_parallel(4), 2);
  EXPECT_EQ(config.data_parallel(3), 0);
  EXPECT_THROW(config.num_microbatches(3), Error);
  config.parallel.expert = 4;
  config.parallel.pipeline = 3;
  EXPECT_EQ(config.fewest_ranks(), 12);
}

TEST(RunConfig, ValueTextOfAPath) {
  RunConfig config;
  config.moe.router.aux_coeff = {0.5, 1};
  EXPECT_EQ(value_text(config, "moe.router.aux_coeff"), "[0.5, 1.0]");
  EXPECT_EQ(value_text(config, "run.stop_at_step"), "");
  EXPECT_EQ(value_text(config, "optimizer.offload.fraction"), "1.0");
  config.optimizer.offload.fraction.reset();
  EXPECT_EQ(value_text(config, "optimizer.offload.fraction"), "\"auto\"");
  EXPECT_EQ(value_text(config, "no.such"), "");
}

}  // namespace
}  // namespace ferry
