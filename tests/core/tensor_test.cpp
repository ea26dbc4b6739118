#include "core/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/host_copy.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class TensorTest : public CpuTest {
 protected:
  // [rows, columns] F32 with elements 0, 1, 2, ...
  Tensor counting(int64_t rows, int64_t columns) {
    std::vector<float> values;
    for (int64_t i = 0; i < rows * columns; ++i) values.push_back(static_cast<float>(i));
    return from_host(stream(), "counting", values, {rows, columns});
  }
};

TEST_F(TensorTest, DefaultIsUndefined) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_FALSE(none.on_host());
  EXPECT_THAT([&] { none.raw(); },
              ThrowsMessage<Error>(HasSubstr("an undefined tensor has no elements")));
  EXPECT_THAT([&] { none.data<float>(); },
              ThrowsMessage<Error>(HasSubstr("an undefined tensor has no elements")));
}

TEST_F(TensorTest, KnowsItsSize) {
  const Tensor tensor = Tensor::empty(stream(), "t", {2, 3, 4}, DType::BF16);
  EXPECT_EQ(tensor.numel(), 24);
  EXPECT_EQ(tensor.bytes(), 48);
  EXPECT_EQ(tensor.dim(-1), 4);
  EXPECT_EQ(tensor.byte_offset(), 0);
}

TEST_F(TensorTest, CopiesShareMemory) {
  const Tensor tensor = counting(2, 2);
  const Tensor copy = tensor;
  stream().zero(copy);
  EXPECT_THAT(read_back<float>(stream(), tensor), ElementsAre(0, 0, 0, 0));
  EXPECT_TRUE(copy.same_memory(tensor));
}

TEST_F(TensorTest, ReshapeSeesTheSameElements) {
  const Tensor tensor = counting(2, 6);
  const Tensor view = tensor.reshape({3, 4});
  EXPECT_EQ(view.shape(), (Shape{3, 4}));
  EXPECT_TRUE(view.same_memory(tensor));
  EXPECT_THAT([&] { tensor.reshape({5}); },
              ThrowsMessage<Error>(HasSubstr("cannot see [2, 6] as [5]")));
}

TEST_F(TensorTest, RowsCutDimZero) {
  const Tensor tensor = counting(5, 2);
  const Tensor cut = tensor.rows(1, 3);
  EXPECT_EQ(cut.shape(), (Shape{2, 2}));
  EXPECT_THAT(read_back<float>(stream(), cut), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(read_back<float>(stream(), cut.rows(1, 2)), ElementsAre(4, 5));
  EXPECT_FALSE(cut.same_memory(tensor));
  EXPECT_FALSE(cut.same_memory(tensor.rows(2, 4)));
  EXPECT_EQ(tensor.rows(5, 5).numel(), 0);
  EXPECT_EQ(tensor.rows(0, 0).rows(0, 0).numel(), 0);
}

TEST_F(TensorTest, RowsRefusesWhatIsNotThere) {
  const Tensor tensor = counting(5, 2);
  for (const auto& cut : {std::pair(-1, 2), std::pair(3, 2), std::pair(0, 6)}) {
    const std::string text = concat("rows [", cut.first, ", ", cut.second, ") of [5, 2]");
    EXPECT_THAT([&] { tensor.rows(cut.first, cut.second); }, ThrowsMessage<Error>(HasSubstr(text)));
  }
  EXPECT_THROW(Tensor().rows(0, 0), Error);
}

TEST_F(TensorTest, DataRefusesAnotherType) {
  const Tensor tensor = counting(1, 1);
  EXPECT_THAT([&] { tensor.data<double>(); }, ThrowsMessage<Error>(HasSubstr("tensor is f32")));
}

TEST_F(TensorTest, CheckShapeQuotesNameAndShapes) {
  const Tensor logits = counting(2, 3);
  EXPECT_NO_THROW(CHECK_SHAPE(logits, {2, 3}));
  EXPECT_THAT(
      [&] {
        CHECK_SHAPE(logits, {3, 2});
      },
      ThrowsMessage<Error>(HasSubstr("logits has shape [2, 3], not [3, 2]")));
  EXPECT_THROW(CHECK_SHAPE(Tensor(), {}), Error);
}

}  // namespace
}  // namespace ferry::testing
