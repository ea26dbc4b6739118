#include "app/sample_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/model_layout.h"
#include "tests/app/small_run.h"
#include "tests/support/run_ranks.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

class SampleLog : public ::testing::Test {
 protected:
  SampleLog() { fs::create_directories(dir_ / "run/log"); }
  std::string text(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(dir_ / "run/log" / name).rdbuf();
    return text.str();
  }
  testing::TempDir dir_;
};

Microbatch batch_of(int64_t first) {
  return {.batch = 2,
          .seq = 3,
          .tokens = {1, 2, 3, 4, 5, 6},
          .labels = {2, 3, 4, 5, 6, 7},
          .loss_mask = std::vector<float>(6, 1),
          .first_sample = first,
          .sample_ids = {first, first + 1}};
}

TEST_F(SampleLog, HasALineForEachMicrobatch) {
  const RunConfig config = testing::small_run(dir_, {"debug.log_samples=true"});
  testing::run_ranks(1, [&](Group& world, Control&) {
    const MeshGroups groups(Mesh(1, mesh_sizes(config.parallel)), world);
    for (const int64_t start : {0, 2}) {
      const auto log = sample_log(config, groups, start);
      log(batch_of(start));
      log(batch_of(start + 2));
    }
  });
  const std::string all = text("samples-0000.jsonl");
  EXPECT_THAT(all,
              ::testing::MatchesRegex(
                  "\\{\"from\":0\\}\n"
                  "\\{\"samples\":\\[0,1\\],\"tokens\":\\[\"[0-9a-f]*\",\"[0-9a-f]*\"\\]\\}\n"
                  "\\{\"samples\":\\[2,3\\],\"tokens\":\\[\"[0-9a-f]*\",\"[0-9a-f]*\"\\]\\}\n"
                  "\\{\"from\":2\\}\n"
                  "\\{\"samples\":\\[2,3\\],\"tokens\":\\[\"[0-9a-f]*\",\"[0-9a-f]*\"\\]\\}\n"
                  "\\{\"samples\":\\[4,5\\],\"tokens\":\\[\"[0-9a-f]*\",\"[0-9a-f]*\"\\]\\}\n"));
}

TEST_F(SampleLog, DigestsAreOfTheTokens) {
  const RunConfig config = testing::small_run(dir_, {"debug.log_samples=true"});
  testing::run_ranks(1, [&](Group& world, Control&) {
    const MeshGroups groups(Mesh(1, mesh_sizes(config.parallel)), world);
    const auto log = sample_log(config, groups, 0);
    Microbatch batch = batch_of(0);
    for (const int changed : {0, 1, 2}) {
      if (changed == 1) batch.tokens[1] = 9;
      if (changed == 2) batch.labels[5] = 9;
      log(batch);
    }
  });
  std::istringstream lines(text("samples-0000.jsonl"));
  std::vector<nlohmann::json> tokens;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("tokens")) tokens.push_back(json["tokens"]);
  }
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_NE(tokens[0][0], tokens[0][1]);
  EXPECT_NE(tokens[1][0], tokens[0][0]);
  EXPECT_EQ(tokens[1][1], tokens[0][1]);
  EXPECT_NE(tokens[2][1], tokens[0][1]) << "the label of the last token is the sample's too";
}

TEST_F(SampleLog, OneOfTheRanksWithTheSameSamplesWrites) {
  const RunConfig config = testing::small_run(
      dir_, {"debug.log_samples=true", "parallel.tensor=2", "model.kv_heads=2"}, 4);
  const RunConfig off = testing::small_run(dir_, {"parallel.tensor=2", "model.kv_heads=2"}, 4);
  testing::run_ranks(4, [&](Group& world, Control&) {
    const MeshGroups groups(Mesh(4, mesh_sizes(config.parallel)), world);
    EXPECT_EQ(sample_log(config, groups, 0) != nullptr, groups.coordinates().tp == 0);
    EXPECT_EQ(sample_log(off, groups, 0), nullptr);
  });
  EXPECT_EQ(text("samples-0000.jsonl"), "{\"from\":0}\n");
  EXPECT_EQ(text("samples-0001.jsonl"), "{\"from\":0}\n");
  EXPECT_FALSE(fs::exists(dir_ / "run/log/samples-0002.jsonl"));
}

}  // namespace
}  // namespace ferry
