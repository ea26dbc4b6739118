// The backward pass of the embedding by the lengths of its runs, that is how often tokens occur: a
// GPU adds long runs in another way than short ones. Sums are in order of position, bit for bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/ops/embedding.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

// Token i occurs lengths[i] times, in any order with the others.
std::vector<int32_t> tokens_of_runs(const std::vector<int>& lengths) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < lengths.size(); ++i)
    tokens.insert(tokens.end(), static_cast<size_t>(lengths[i]), static_cast<int32_t>(i));
  std::shuffle(tokens.begin(), tokens.end(), std::mt19937_64(7));
  return tokens;
}

class EmbeddingRuns : public DeviceTest {
 protected:
  struct Case {
    Tensor dweight, dy, tokens;
  };
  Case make(const std::vector<int>& lengths, int64_t width) {
    const std::vector<int32_t> tokens = tokens_of_runs(lengths);
    const auto num_tokens = static_cast<int64_t>(tokens.size());
    const auto vocab = static_cast<int64_t>(lengths.size());
    return {random_tensor(stream(), {vocab, width}, accumulate(), 3),
            random({num_tokens, width}, 1), ints(tokens, {num_tokens})};
  }

  void expect_sums_in_order(const Case& c) {
    const auto ids = read_back<int32_t>(stream(), c.tokens);
    const auto rows = read_back_as_double(stream(), c.dy);
    std::vector<double> expected = read_back_as_double(stream(), c.dweight);
    const auto width = static_cast<size_t>(c.dy.dim(1));
    dispatch_float(accumulate(), [&]<class S>() {
      for (size_t t = 0; t < ids.size(); ++t)
        for (size_t i = 0; i < width; ++i) {
          double& sum = expected[static_cast<size_t>(ids[t]) * width + i];
          sum = static_cast<double>(
              static_cast<S>(static_cast<S>(sum) + static_cast<S>(rows[t * width + i])));
        }
    });
    embedding_backward(stream(), c.dweight, c.dy, c.tokens);
    testing::expect_close(read_back_as_double(stream(), c.dweight), expected, 0, 0);
  }
};

std::string text_of(const std::vector<int>& lengths) {
  std::string text = "runs of";
  for (const int length : lengths) text += concat(" ", length);
  return text;
}

// A GPU calls runs of 128 long, looks for them at every 128th of the sorted tokens, and adds 128
// rows at a time, 512 of which are in flight.
TEST_P(EmbeddingRuns, OfAnyLengthBeginAnywhere) {
  const std::vector<std::vector<int>> cases{
      {1, 2, 3, 4, 5, 0, 6, 7},     // short ones alone
      {127, 1},                     // just short, and just long, from the first token on
      {128, 1},                     //
      {129, 1},                     //
      {1, 127},                     // the last tokens
      {1, 128},                     //
      {60, 127, 60},                // from between two of the places that are looked at
      {60, 128, 60},                //
      {127, 128, 127},              //
      {127, 129},                   //
      {1, 255, 256, 257},           // around them
      {300, 2, 1000, 1},            //
      {200, 300},                   // long ones side by side
      {128, 128, 128},              //
      {64, 192, 128, 700, 1, 130},  //
      {384},                        // all tokens equal
      {511},                        //
      {512},                        //
      {513},                        //
      {1000},                       //
      {0, 0, 1537, 0}};
  for (const int64_t width : {1, 8, 40, 63, 72}) {
    for (const std::vector<int>& lengths : cases) {
      SCOPED_TRACE(concat("rows of ", width, ", ", text_of(lengths)));
      expect_sums_in_order(make(lengths, width));
    }
  }
}

// More columns than a block of threads has, in vectors or not.
TEST_P(EmbeddingRuns, OfWideRows) {
  for (const int64_t width : {1032, 2047, 2048, 2056, 4104}) {
    SCOPED_TRACE(concat("rows of ", width));
    expect_sums_in_order(make({1, 2, 3, 129, 1}, width));
  }
}

// Whole vectors in size, but not in place.
TEST_P(EmbeddingRuns, OfRowsThatBeginAnywhere) {
  const int64_t width = 16;
  Case c = make({3, 130, 2}, width);
  const int64_t size = c.dy.numel();
  const Tensor longer = random({size + 1}, 1);
  c.dy = longer.rows(1, size + 1).reshape(c.dy.shape());
  expect_sums_in_order(c);
}

TEST_P(EmbeddingRuns, OfAPartAreThoseOfTheWhole) {
  const std::vector<int> lengths{130, 1, 0, 200, 127, 128, 300, 2};
  const auto vocab = static_cast<int64_t>(lengths.size());
  for (const int64_t width : {5, 40}) {
    for (const int64_t part_rows : {1, 3, 4}) {
      SCOPED_TRACE(concat("rows of ", width, ", ", part_rows, " of them in a part"));
      const Case whole = make(lengths, width), parts = make(lengths, width);
      embedding_backward(stream(), whole.dweight, whole.dy, whole.tokens);
      for (int64_t first = 0; first < vocab; first += part_rows)
        embedding_backward(stream(), parts.dweight.rows(first, std::min(first + part_rows, vocab)),
                           parts.dy, parts.tokens, {first, vocab});
      expect_same_bits(stream(), parts.dweight, whole.dweight);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, EmbeddingRuns, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
