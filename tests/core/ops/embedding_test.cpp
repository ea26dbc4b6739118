#include "core/ops/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

class Embedding : public DeviceTest {};

TEST_P(Embedding, ForwardCopiesRows) {
  for (const int64_t width : {1, 63, 128}) {
    for (const int64_t num_tokens : {0, 1, 129}) {
      SCOPED_TRACE(concat(num_tokens, " tokens of ", width));
      const Tensor weight = random({17, width}, 1);
      const Tensor tokens = random_ints(stream(), {num_tokens}, 17, 2);
      const Tensor y = output({num_tokens, width});
      embedding_forward(stream(), y, weight, tokens);
      const auto table = read_back_as_double(stream(), weight);
      std::vector<double> expected;
      for (const int32_t token : read_back<int32_t>(stream(), tokens))
        expected.insert(expected.end(), table.begin() + token * width,
                        table.begin() + (token + 1) * width);
      EXPECT_EQ(read_back_as_double(stream(), y), expected);
    }
  }
}

TEST_P(Embedding, BackwardAddsRowsOfEqualTokens) {
  for (const int64_t num_tokens : {0, 1, 65, 513}) {
    SCOPED_TRACE(num_tokens);
    const int64_t width = 40, vocab = 11;
    const Tensor dy = random({num_tokens, width}, 1);
    const Tensor tokens = random_ints(stream(), {num_tokens}, 5, 2);  // tokens 5..10 never occur
    const Tensor dweight = random_tensor(stream(), {vocab, width}, accumulate(), 3);
    std::vector<double> expected = read_back_as_double(stream(), dweight);
    embedding_backward(stream(), dweight, dy, tokens);
    const auto rows = read_back_as_double(stream(), dy);
    const auto ids = read_back<int32_t>(stream(), tokens);
    for (int64_t t = 0; t < num_tokens; ++t)
      for (int64_t i = 0; i < width; ++i) expected[ids[t] * width + i] += rows[t * width + i];
    testing::expect_close(read_back_as_double(stream(), dweight), expected, 0,
                          static_cast<double>(num_tokens + 1) * epsilon_of(accumulate()));
  }
}

TEST_P(Embedding, BackwardIsDeterministicWhenAllTokensAreEqual) {
  const Tensor dy = random({1000, 64}, 1);
  const Tensor tokens = ints(std::vector<int32_t>(1000, 3), {1000});
  const Tensor first = zeros(stream(), {7, 64}, accumulate());
  const Tensor second = zeros(stream(), {7, 64}, accumulate());
  embedding_backward(stream(), first, dy, tokens);
  embedding_backward(stream(), second, dy, tokens);
  expect_same_bits(stream(), first, second);
}

// 17 tokens in four parts of 5 rows, the last 3 of which are padding, and a part of padding alone.
constexpr int64_t kVocab = 17, kPartRows = 5, kNumParts = 5;

TEST_P(Embedding, PartsGiveTheirRowsAndZeros) {
  for (const int64_t width : {1, 63, 128}) {
    for (const int64_t num_tokens : {0, 1, 129}) {
      SCOPED_TRACE(concat(num_tokens, " tokens of ", width));
      const Tensor whole = random({kNumParts * kPartRows, width}, 1);
      const Tensor tokens = random_ints(stream(), {num_tokens}, kVocab, 2);
      const auto table = read_back_as_double(stream(), whole);
      for (int64_t part = 0; part < kNumParts; ++part) {
        const int64_t first = part * kPartRows, end = first + kPartRows;
        const Tensor y = output({num_tokens, width});
        embedding_forward(stream(), y, whole.rows(first, end), tokens, {first, kVocab});
        std::vector<double> expected;
        for (const int32_t token : read_back<int32_t>(stream(), tokens))
          for (int64_t i = 0; i < width; ++i)
            expected.push_back(token >= first && token < end ? table[token * width + i] : 0.0);
        EXPECT_EQ(read_back_as_double(stream(), y), expected) << "part " << part;
      }
    }
  }
}

TEST_P(Embedding, GradientsOfPartsAreRowsOfTheWhole) {
  for (const int64_t width : {3, 40}) {
    for (const int64_t num_tokens : {0, 1, 65, 513}) {
      SCOPED_TRACE(concat(num_tokens, " tokens of ", width));
      const Shape shape{kNumParts * kPartRows, width};
      const Tensor dy = random({num_tokens, width}, 1);
      const Tensor tokens = random_ints(stream(), {num_tokens}, kVocab, 2);
      const Tensor whole = random_tensor(stream(), shape, accumulate(), 3);
      const Tensor parts = random_tensor(stream(), shape, accumulate(), 3);
      embedding_backward(stream(), whole, dy, tokens);
      for (int64_t first = 0; first < shape[0]; first += kPartRows)
        embedding_backward(stream(), parts.rows(first, first + kPartRows), dy, tokens,
                           {first, kVocab});
      expect_same_bits(stream(), parts, whole);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Embedding, device_cases(), case_name);

class EmbeddingChecks : public CpuTest {
 protected:
  template <class Call>
  std::string error_of(Call&& call) {
    try {
      call();
      stream().synchronize();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(EmbeddingChecks, RefusesTokensOutsideOfTheVocabulary) {
  for (const int32_t bad : {-1, 4}) {
    auto own_stream = device().make_stream("fails");
    const Tensor weight = zeros(*own_stream, {4, 2}, DType::F32);
    const Tensor y = zeros(*own_stream, {3, 2}, DType::F32);
    const Tensor tokens = from_host(*own_stream, "tokens", std::vector<int32_t>{0, bad, 1}, {3});
    for (const bool backward : {false, true}) {
      const std::string text = error_of([&] {
        if (backward)
          embedding_backward(*own_stream, weight, y, tokens);
        else
          embedding_forward(*own_stream, y, weight, tokens);
        own_stream->synchronize();
      });
      EXPECT_THAT(
          text, ::testing::HasSubstr(concat("token 1 is ", bad, ", outside of a vocabulary of 4")));
    }
  }
}

// A padding row is no token, whichever part has it.
TEST_F(EmbeddingChecks, RefusesPaddingAsToken) {
  for (const int64_t first : {0, 3}) {
    auto own_stream = device().make_stream("fails");
    const Tensor weight = zeros(*own_stream, {3, 2}, DType::F32);
    const Tensor y = zeros(*own_stream, {3, 2}, DType::F32);
    const Tensor tokens = from_host(*own_stream, "tokens", std::vector<int32_t>{0, 4, 5}, {3});
    const std::string text = error_of([&] {
      embedding_forward(*own_stream, y, weight, tokens, {first, 5});
      own_stream->synchronize();
    });
    EXPECT_THAT(text, ::testing::HasSubstr("token 2 is 5, outside of a vocabulary of 5"));
  }
}

TEST_F(EmbeddingChecks, NamesShapesAndDtypes) {
  using ::testing::HasSubstr;
  const Tensor table = zeros(stream(), {4, 2}, DType::F32);
  const Tensor tokens = zeros(stream(), {3}, DType::I32);
  const auto forward = [&](const Tensor& y, const Tensor& some_tokens) {
    return error_of([&] { embedding_forward(stream(), y, table, some_tokens); });
  };
  EXPECT_THAT(forward(zeros(stream(), {2, 2}, DType::F32), tokens),
              HasSubstr("rows has shape [2, 2], not [3, 2]"));
  EXPECT_THAT(forward(zeros(stream(), {3, 2}, DType::BF16), tokens),
              HasSubstr("y is bf16, weight is f32"));
  EXPECT_THAT(forward(zeros(stream(), {3, 2}, DType::F32), zeros(stream(), {3}, DType::I64)),
              HasSubstr("tokens are i64 [3], not i32 [T]"));
  const Tensor y = zeros(stream(), {3, 2}, DType::F32);
  EXPECT_THAT(error_of([&] {
                embedding_forward(stream(), y, table, tokens, {4, 0});
              }),
              HasSubstr("rows from 4 of a vocabulary of 0"));
  EXPECT_THAT(error_of([&] {
                embedding_backward(stream(), table, y, tokens, {-1, 8});
              }),
              HasSubstr("rows from -1 of a vocabulary of 8"));
  EXPECT_THAT(error_of([&] {
                embedding_backward(stream(), zeros(stream(), {4, 2}, DType::BF16),
                                   zeros(stream(), {3, 2}, DType::BF16), tokens);
              }),
              HasSubstr("dweight is bf16, dy is bf16"));
}

}  // namespace
}  // namespace ferry::testing
