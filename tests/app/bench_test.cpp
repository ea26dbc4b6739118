#include "app/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "app/version.h"
#include "tests/support/devices.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

std::vector<BenchRow> rows() {
  BenchRow product{"ops", "qkv forward", "256 x 256 x 128"};
  product.times = {2e-6, 1e-6};
  product.flops = 1e6;
  product.ceiling = 1e12;
  BenchRow copy{"copy", "host to host", "1 MiB"};
  copy.times = {1e-3, 0.5e-3};
  copy.bytes = 2e6;
  copy.ceiling = 8e9;
  return {product, copy};
}

TEST(BenchTable, HasAShareOfTheCeilingInEveryRow) {
  std::istringstream text(bench_table(rows()));
  std::string heading, product, copy;
  std::getline(text, heading);
  std::getline(text, product);
  std::getline(text, copy);
  EXPECT_THAT(heading, HasSubstr("of ceiling"));
  EXPECT_EQ(product,
            "qkv forward                  256 x 256 x 128                             2.0          "
            "1.0  0.500 TFLOP/s      50.0%");
  EXPECT_EQ(copy,
            "host to host                 1 MiB                                    1000.0        "
            "500.0       2.0 GB/s      25.0%");
  EXPECT_FALSE(std::getline(text, heading));
}

TEST(BenchJson, IsAnObjectALine) {
  std::istringstream text(bench_json(rows(), "tiny", "a machine", "ferry bench ops"));
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(text, line);) objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[0].at("bench"), "ops");
  EXPECT_EQ(objects[0].at("tflops"), 0.5);
  EXPECT_EQ(objects[0].at("of_ceiling"), 0.5);
  EXPECT_FALSE(objects[0].contains("gb_per_s"));
  EXPECT_EQ(objects[1].at("gb_per_s"), 2.0);
  EXPECT_EQ(objects[1].at("median_us"), 1000.0);
  EXPECT_FALSE(objects[1].contains("tflops"));
  for (const nlohmann::json& object : objects) {
    EXPECT_EQ(object.at("config"), "tiny");
    EXPECT_EQ(object.at("machine"), "a machine");
    EXPECT_EQ(object.at("command"), "ferry bench ops");
    EXPECT_EQ(object.at("commit"), git_revision());
    EXPECT_EQ(object.at("date").get<std::string>().size(), 10u);
  }
}

TEST(CallTimes, AreTheUpperMedianAndTheFastest) {
  const CallTimes odd = call_times({3, 1, 2});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.fastest, 1);
  const CallTimes even = call_times({4, 1, 3, 2});
  EXPECT_EQ(even.median, 3);
  EXPECT_EQ(even.fastest, 1);
  EXPECT_EQ(call_times({5}).median, 5);
}

class TimeCalls : public testing::CpuTest {};

TEST_F(TimeCalls, GivesTheTimeOfOneCall) {
  int calls = 0;
  const CallTimes times = time_calls(stream(), [&] { ++calls; });
  EXPECT_GT(calls, 10);
  EXPECT_GT(times.fastest, 0);
  EXPECT_GE(times.median, times.fastest);
}

}  // namespace
}  // namespace ferry
