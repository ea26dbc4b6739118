#include "app/bench_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/devices.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class GemmBenchTest : public testing::CpuTest {
 protected:
  GemmBenchTest() {
    config_.model.hidden = 24;
    config_.model.seq = 32;
    config_.model.precision = "fp32";
    config_.moe.experts = 8;
    config_.moe.top_k = 2;
    config_.moe.ffn = 8;
    config_.batch.micro = 2;
  }

  std::vector<GemmRow> measure() {
    std::vector<GemmRow> rows;
    measure_gemm(stream(), config_, options_, [&](const GemmRow& row) { rows.push_back(row); });
    return rows;
  }
  std::string error() {
    try {
      measure();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      return error.what();
    }
    return "no error";
  }

  RunConfig config_;
  GemmBenchOptions options_;
};

TEST_F(GemmBenchTest, MeasuresEveryProductWithEveryDistribution) {
  std::map<std::string, int> names, distributions;
  std::map<std::string, double> max_over_mean;
  for (const GemmRow& row : measure()) {
    ++names[row.name];
    ++distributions[row.distribution];
    EXPECT_EQ(row.rows_per_expert, 16);  // 2 * 32 tokens, each to 2 of 8 experts
    EXPECT_EQ(row.flops, 2.0 * 128 * 24 * (row.name.starts_with("fc1") ? 16 : 8));
    EXPECT_EQ(row.shape,
              row.name.starts_with("fc1") ? "8 experts, 128 x 16 x 24" : "8 experts, 128 x 24 x 8");
    EXPECT_GT(row.times.median, 0);
    EXPECT_GT(row.ceiling.median, 0);
    EXPECT_GE(row.times.median, row.times.fastest);
    EXPECT_GT(row.rate(), 0);
    EXPECT_GT(row.ceiling_rate(), 0);
    EXPECT_EQ(row.contiguous.has_value(), row.name.ends_with(" gathered")) << row.name;
    if (row.contiguous) {
      EXPECT_EQ(row.of_contiguous(), row.contiguous->median / row.times.median);
    }
    max_over_mean[row.distribution] = row.max_over_mean;
  }
  EXPECT_EQ(names, (std::map<std::string, int>{{"fc1 forward", 4},
                                               {"fc1 dgrad", 4},
                                               {"fc1 wgrad", 4},
                                               {"fc1 swiglu", 4},
                                               {"fc1 swiglu gathered", 4},
                                               {"fc1 wgrad gathered", 4},
                                               {"fc2 forward", 4},
                                               {"fc2 dgrad", 4},
                                               {"fc2 wgrad", 4}}));
  EXPECT_EQ(distributions, (std::map<std::string, int>{
                               {"even", 9}, {"uneven", 9}, {"power law", 9}, {"one expert", 9}}));
  EXPECT_EQ(max_over_mean["even"], 1);
  EXPECT_EQ(max_over_mean["uneven"], 2);
  EXPECT_EQ(max_over_mean["one expert"], 8);
}

TEST_F(GemmBenchTest, MeasuresTheRowsThatAreAskedFor) {
  options_.rows_per_expert = {57, 3};
  options_.sustained = true;
  options_.sustained_s = 0.001;
  config_.model.precision = "bf16";
  config_.moe.ffn = 4;
  std::map<int64_t, int> rows;
  for (const GemmRow& row : measure()) ++rows[row.rows_per_expert];
  EXPECT_EQ(rows, (std::map<int64_t, int>{{57, 36}, {3, 36}}));
}

// 24 rows: 6 choices of 4 tokens; 5 and 9 do not divide them, so 1 of 24 and 3 of 8.
TEST_F(GemmBenchTest, GathersTheRowsOfAnyNumberOfChoices) {
  options_.rows_per_expert = {3};
  for (const int64_t top_k : {6, 5, 9}) {
    config_.moe.top_k = top_k;
    EXPECT_EQ(measure().size(), 36u);
  }
}

TEST_F(GemmBenchTest, MeasuresTheEdgesOfTiles) {
  options_.rows_per_expert = {57};
  options_.edge = true;
  config_.model.precision = "fp64";
  int edges = 0;
  for (const GemmRow& row : measure()) edges += row.distribution == "edge";
  EXPECT_EQ(edges, 9);
}

TEST_F(GemmBenchTest, RefusesWhatItCannotMeasure) {
  options_.rows_per_expert = {16, int64_t{1} << 28};
  EXPECT_THAT(error(), HasSubstr("error: 268435456 rows for each of 8 experts are too many"));
  EXPECT_THAT(error(), HasSubstr("try : --rows-per-expert 268435455 or fewer"));
  options_.rows_per_expert = {16};
  options_.edge = true;
  EXPECT_THAT(error(), HasSubstr("--edge needs 449 rows"));
  config_.moe.experts = 0;
  EXPECT_THAT(error(), HasSubstr("moe.experts is 0"));
}

}  // namespace
}  // namespace ferry
