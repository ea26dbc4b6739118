#include "app/adam_rates.h"

#include <gmock/gmock.h>

#include <set>

#include "app/cpu_binding.h"
#include "core/vector_level.h"

namespace ferry {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

TEST(ChosenElements, AreFourCachesOrAQuarterOfTheMemory) {
  EXPECT_EQ(chosen_elements(kGib, 100 * kGib), 4 * kGib / kUpdateArrayBytes);
  EXPECT_EQ(chosen_elements(kGib, 8 * kGib), 2 * kGib / kUpdateArrayBytes);
  EXPECT_EQ(chosen_elements(0, 100 * kGib), kGib / kUpdateArrayBytes);
  EXPECT_EQ(chosen_elements(kGib, 0), 1);
}

TEST(AdamRates, HaveARowForEachLoopWithEachNumberOfThreads) {
  Backend backend;
  backend.cpu = make_cpu_device();
  const AdamRates rates = measure_adam(backend, 100'000);
  std::set<int> threads;
  std::set<std::string> vectors;
  int adamw_of_all = 0;
  const auto all = static_cast<int>(allowed_cpus().size());
  for (const AdamRow& row : rates.rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(row.elements, 100'000);
    EXPECT_GT(row.times.fastest, 0);
    EXPECT_GE(row.times.median, row.times.fastest);
    EXPECT_GT(row.ceiling, 0);
    EXPECT_EQ(row.d2h, 0);
    EXPECT_EQ(row.is_update, row.name == "adamw" || row.name == "sgd");
    // A loop without arithmetic is a ceiling, also of itself.
    if (!row.is_update) {
      EXPECT_LE(row.rate(), row.ceiling);
    }
    threads.insert(row.threads);
    vectors.insert(row.vectors);
    if (row.name == "adamw" && row.threads == all) ++adamw_of_all;
  }
  EXPECT_TRUE(threads.contains(1));
  EXPECT_TRUE(threads.contains(all));
  EXPECT_EQ(*threads.rbegin(), all);
  EXPECT_TRUE(vectors.contains("portable"));
  EXPECT_TRUE(vectors.contains(std::string(name_of(vector_level()))));
  EXPECT_EQ(adamw_of_all, static_cast<int>(vector_level()) + 1);
  EXPECT_GT(rates.read, 0);
  EXPECT_GT(rates.copy, 0);
  EXPECT_GT(rates.triad, 0);
}

TEST(AdamRow, CountsBytesAndParametersOfTheMedian) {
  AdamRow row;
  row.elements = 1000;
  row.bytes_per_element = 30;
  row.times = {0.5, 0.25};
  EXPECT_EQ(row.elements_per_s(), 2000);
  EXPECT_EQ(row.rate(), 60000);
}

}  // namespace
}  // namespace ferry
