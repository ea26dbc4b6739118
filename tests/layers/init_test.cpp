#include "layers/init.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

class InitTest : public CpuTest {
 protected:
  std::vector<double> values(const std::string& name, const Shape& shape, DType dtype, Init init,
                             uint64_t seed = 3) {
    Parameter parameter;
    parameter.name = name;
    parameter.shape = shape;
    parameter.dtype = dtype;
    parameter.init = init;
    allocate_value(stream(), parameter, seed);
    EXPECT_EQ(parameter.value.shape(), shape);
    EXPECT_EQ(parameter.value.dtype(), dtype);
    return read_back_as_double(stream(), parameter.value);
  }
};

TEST_F(InitTest, SiteIsFnv1a) {
  EXPECT_EQ(random_site(""), 0x811c9dc5u);
  EXPECT_EQ(random_site("a"), 0xe40c292cu);
  EXPECT_EQ(random_site("foobar"), 0xbf9cf968u);
}

TEST_F(InitTest, Constant) {
  EXPECT_EQ(values("norm", {3}, DType::BF16, Init::ones()), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(values("zero", {2}, DType::F32, Init{}), (std::vector<double>{0, 0}));
}

TEST_F(InitTest, NormalHasItsMoments) {
  double sum = 0, squares = 0;
  const int64_t count = 100 * 200;
  for (const double value : values("w", {100, 200}, DType::F32, Init::normal(0.02))) {
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / count, 0, 0.02 * 4 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.02 * 4 / std::sqrt(2.0 * count));
}

TEST_F(InitTest, DependsOnNameAndSeedOnly) {
  const Init init = Init::normal(1);
  const auto base = values("a", {4, 8}, DType::F32, init);
  EXPECT_EQ(values("a", {4, 8}, DType::F32, init), base);
  EXPECT_NE(values("b", {4, 8}, DType::F32, init), base);
  EXPECT_NE(values("a", {4, 8}, DType::F32, init, 4), base);
  // Element i comes from counter i, whatever the shape.
  const auto longer = values("a", {7, 8}, DType::F32, init);
  EXPECT_EQ(std::vector<double>(longer.begin(), longer.begin() + 32), base);
}

TEST_F(InitTest, Bf16StartsFromTheRoundedValuesOfFp32) {
  const auto exact = values("a", {4, 9}, DType::F32, Init::normal(1));
  const auto rounded = values("a", {4, 9}, DType::BF16, Init::normal(1));
  for (size_t i = 0; i < exact.size(); ++i)
    EXPECT_EQ(rounded[i], static_cast<float>(BFloat16(exact[i])));
}

TEST_F(InitTest, OutputLayersStartSmaller) { EXPECT_DOUBLE_EQ(output_init_std(0.02, 8), 0.02 / 4); }

// A part has the values of the whole, whatever the cut; padding is zero.
TEST_F(InitTest, APartHasTheValuesOfTheWhole) {
  const auto expect_part = [&](Init init, int64_t rows,
                               const std::function<void(Parameter&)>& cut) {
    Parameter parameter;
    parameter.name = "w";
    parameter.shape = {rows, 10};
    parameter.init = init;
    cut(parameter);
    allocate_value(stream(), parameter, 3);
    EXPECT_EQ(parameter.value.shape(), parameter.shape);
    EXPECT_EQ(read_back_as_double(stream(), parameter.value),
              part_of(values("w", {rows, 10}, DType::F32, init), parameter.placement()));
  };
  const int64_t sections[] = {8, 4};
  for (const Init init : {Init::normal(1), Init::ones()}) {
    for (const int rank : {0, 1, 2, 3}) {
      expect_part(init, 12, [&](Parameter& p) { cut_rows(p, sections, rank, 4); });
      expect_part(init, 12, [&](Parameter& p) { cut_columns(p, rank % 2, 2); });
      expect_part(init, 12, [&](Parameter& p) {
        cut_rows(p, sections, rank, 4);
        cut_columns(p, rank, 5);
      });
      // 2 + 2 + 1 + 0 rows.
      expect_part(init, 5, [&](Parameter& p) { cut_vocabulary(p, rank, 4); });
    }
  }
}

}  // namespace
}  // namespace ferry::testing
