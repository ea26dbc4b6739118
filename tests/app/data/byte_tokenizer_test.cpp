#include "app/data/byte_tokenizer.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using testing::expect_error;

TEST(ByteTokenizer, BytesAreIds) {
  const auto tokenizer = open_tokenizer("byte");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  EXPECT_EQ(tokenizer->name(), "byte");
  std::vector<int32_t> ids;
  tokenizer->encode("A\n\xff", ids);
  EXPECT_THAT(ids, ::testing::ElementsAre(65, 10, 255));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{65, 256, 255}), "A\xff");
  for (const int32_t id : {-1, 257}) {
    expect_error(ExitCode::Data, {std::to_string(id), "257 ids"},
                 [&] { tokenizer->decode(std::vector<int32_t>{id}); });
  }
}

}  // namespace
}  // namespace ferry
