#include "core/ops/reduce.h"

#include <gmock/gmock.h>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<int64_t> kSizes = {0, 1, 63, 64, 65, 127, 129, 100001};

class ReduceOp : public DeviceTest {
 protected:
  std::vector<double> values(const Tensor& tensor) { return read_back_as_double(stream(), tensor); }
  double squares_of(const Tensor& x) {
    double sum = 0;
    for (const double value : values(x)) sum += value * value;
    return sum;
  }
};

TEST_P(ReduceOp, SumSquaresAddsInFloat64) {
  for (const int64_t n : kSizes) {
    const Tensor x = random({n}, 1), total = tensor_of(stream(), {3}, {1}, DType::F64);
    const double want = 3 + squares_of(x);
    sum_squares(stream(), total, x);
    testing::expect_close(values(total), {want}, 1e-12, 0);
  }
}

TEST_P(ReduceOp, SumSquaresGivesTheSameBitsEachTime) {
  const Tensor x = random({100001}, 1);
  const Tensor first = zeros(stream(), {1}, DType::F64), again = zeros(stream(), {1}, DType::F64);
  sum_squares(stream(), first, x);
  sum_squares(stream(), again, x);
  expect_same_bits(stream(), first, again);
}

TEST_P(ReduceOp, MeanSquareDividesAndAdds) {
  for (const int64_t n : kSizes) {
    const Tensor x = random({n}, 1), total = tensor_of(stream(), {.5}, {1}, accumulate());
    mean_square(stream(), total, x, 128);
    testing::expect_close(values(total), {.5 + squares_of(x) / 128},
                          1e-12 + 32 * epsilon_of(accumulate()), 0);
  }
}

TEST_P(ReduceOp, ColumnSums) {
  for (const int64_t rows : {0, 1, 65, 300}) {
    for (const int64_t columns : {1, 63, 64, 65, 129}) {
      const Tensor x = random_tensor(stream(), {rows, columns}, accumulate(), 1);
      const Tensor sums = output({columns}, accumulate());
      column_sums(stream(), sums, x);
      std::vector<double> want(columns);
      const auto in = values(x);
      for (size_t i = 0; i < in.size(); ++i) want[i % columns] += in[i];
      testing::expect_close(values(sums), want, 0,
                            static_cast<double>(rows) * 8 * epsilon_of(accumulate()));
    }
  }
}

TEST_P(ReduceOp, CountsAddUpBeyond32Bits) {
  const Tensor totals = from_host(stream(), "totals", std::vector<int64_t>{1ll << 40, 0, -1}, {3});
  accumulate_counts(stream(), totals, ints({2147483647, 5, 0}, {3}));
  accumulate_counts(stream(), totals, ints({2147483647, 6, 0}, {3}));
  EXPECT_THAT(read_back<int64_t>(stream(), totals),
              ElementsAre((1ll << 40) + 2 * 2147483647ll, 11, -1));
}

TEST_P(ReduceOp, RefusesWrongArguments) {
  const Tensor x = random({4, 8}, 1);
  EXPECT_THAT([&] { sum_squares(stream(), output({1}, DType::F32), x); },
              ThrowsMessage<Error>(HasSubstr("total is f32")));
  EXPECT_THAT([&] { sum_squares(stream(), output({2}, DType::F64), x); },
              ThrowsMessage<Error>(HasSubstr("total has shape [2], not [1]")));
  EXPECT_THAT([&] { mean_square(stream(), output({1}, accumulate()), x, 0); },
              ThrowsMessage<Error>(HasSubstr("divisor is 0")));
  EXPECT_THAT([&] { column_sums(stream(), output({7}), x); },
              ThrowsMessage<Error>(HasSubstr("sums has shape [7], not [8]")));
  EXPECT_THAT(
      [&] {
        column_sums(stream(), output({8}, DType::BF16), output({4, 8}, DType::BF16));
      },
      ThrowsMessage<Error>(HasSubstr("x is bf16")));
  EXPECT_THAT(
      [&] { accumulate_counts(stream(), output({2}, DType::I32), output({2}, DType::I32)); },
      ThrowsMessage<Error>(HasSubstr("totals are i32")));
}

INSTANTIATE_TEST_SUITE_P(Devices, ReduceOp, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
