#include "app/bench_dense.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/ops/gemm_tuning.h"
#include "tests/support/devices.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

RunConfig small_config() {
  RunConfig config;
  config.run.name = "small";
  config.model.hidden = 64;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.head_dim = 16;
  config.model.vocab = 256;
  config.model.seq = 128;
  config.model.precision = "bf16";
  config.batch.micro = 2;
  return config;
}

DenseRow some_row() {
  DenseRow row;
  row.name = "qkv wgrad";
  row.shape = "8 x 4 x 2";
  row.flops = 2e9;
  row.heuristic = {3e-3, 2.5e-3};
  row.measured = {2e-3, 1.5e-3};
  row.differs = true;
  return row;
}

TEST(DenseBench, PrintsBothTimes) {
  DenseRow same = some_row();
  same.differs = false;
  const std::string table = dense_table({some_row(), same});
  EXPECT_THAT(table, HasSubstr("heuristic us"));
  EXPECT_THAT(table, HasSubstr("3000.0       2000.0     1.000     1.500  another\n"));
  EXPECT_THAT(table, HasSubstr("1.500  the same\n"));
}

TEST(DenseBench, WritesARow) {
  const std::string text = dense_json({some_row()}, small_config(), "a GPU", "a command");
  const auto row = nlohmann::json::parse(text);
  EXPECT_EQ(row["bench"], "gemm");
  EXPECT_EQ(row["config"], "small");
  EXPECT_EQ(row["name"], "qkv wgrad");
  EXPECT_EQ(row["shape"], "8 x 4 x 2");
  EXPECT_EQ(row["dtype"], "bf16");
  EXPECT_DOUBLE_EQ(row["median_us"], 2000);
  EXPECT_DOUBLE_EQ(row["fastest_us"], 1500);
  EXPECT_DOUBLE_EQ(row["heuristic_us"], 3000);
  EXPECT_DOUBLE_EQ(row["tflops"], 1);
  EXPECT_DOUBLE_EQ(row["speedup"], 1.5);
  EXPECT_EQ(row["differs"], true);
  EXPECT_EQ(row["machine"], "a GPU");
  EXPECT_EQ(row["command"], "a command");
}

TEST(DenseBench, NeedsAGpu) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("test");
  try {
    measure_dense(*stream, small_config());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("this run is on the CPU\n  try : run.backend=cuda"));
  }
}

TEST(DenseBench, MeasuresNineProducts) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream("test");
  std::set<std::string> names, shapes;
  for (const DenseRow& row : measure_dense(*stream, small_config())) {
    names.insert(row.name);
    shapes.insert(row.shape);
    EXPECT_GT(row.heuristic.median, 0);
    EXPECT_LT(row.heuristic.median, 1);
    EXPECT_GT(row.measured.median, 0);
    EXPECT_LT(row.measured.median, 1);
  }
  EXPECT_EQ(names, (std::set<std::string>{"qkv forward", "qkv dgrad", "qkv wgrad", "proj forward",
                                          "proj dgrad", "proj wgrad", "lm_head forward",
                                          "lm_head dgrad", "lm_head wgrad"}));
  EXPECT_EQ(shapes, (std::set<std::string>{"256 x 128 x 64", "256 x 64 x 64", "256 x 256 x 64"}));
  EXPECT_EQ(gemm_tuning()->unknown, UnknownGemm::Heuristic);
}

}  // namespace
}  // namespace ferry
