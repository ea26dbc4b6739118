#include "checkpoint/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/checkpoint/sample_model.h"

namespace ferry {
namespace {

TEST(Digest, HexRoundTripAndRefusal) {
  const Digest128 digest{0x0123456789abcdefu, 0x00000000000000f1u};
  EXPECT_EQ(to_hex(digest), "0123456789abcdef00000000000000f1");
  EXPECT_EQ(digest_from_hex(to_hex(digest)), digest);
  for (const char* hex :
       {"", "0123456789abcdef00000000000000f", "0123456789ABCDEF00000000000000f1",
        "0123456789abcdef00000000000000f1 ", "g123456789abcdef00000000000000f1"}) {
    EXPECT_EQ(testing::storage_error([&] { digest_from_hex(hex); }),
              "a digest has 32 lower-case hexadecimal digits");
  }
}

TEST(Digest, AdditionCarries) {
  Digest128 sum{1, ~uint64_t{0}};
  sum += {2, 1};
  EXPECT_EQ(sum, (Digest128{4, 0}));
}

TEST(Digest, ChunkDigestIsXxh3) {
  EXPECT_EQ(to_hex(chunk_digest("", 0)), "99aa06d3014798d86001c324468d497f");  // published for ""
  const std::string text(100000, 'x');
  StreamDigest stream;
  for (size_t i = 0; i < text.size(); i += 1000) stream.add(text.data() + i, 1000);
  EXPECT_EQ(stream.value(), chunk_digest(text.data(), text.size()));
}

TEST(Digest, TensorDigestHasItsDocumentedValue) {
  // splitmix64 seeded with 0 yields e220a8397b1dcdaf first and 6e789e6aa1b965f4 second.
  const uint32_t one[2] = {1, 0};
  EXPECT_EQ(to_hex(run_digest(DType::F32, 0, one, 2)), "0000000000000000e220a8397b1dcdaf");
  const uint32_t two[2] = {0, 2};
  EXPECT_EQ(to_hex(run_digest(DType::F32, 0, two, 2)), "0000000000000000dcf13cd54372cbe8");
  EXPECT_EQ(to_hex(run_digest(DType::F32, 1, two + 1, 1)), "0000000000000000dcf13cd54372cbe8");
}

TEST(Digest, TensorDigestDoesNotDependOnTheCut) {
  const testing::SampleModel model;
  for (const testing::SampleTensor& tensor : model.tensors()) {
    const Digest128 whole =
        slice_digest(tensor.dtype, whole_box(tensor.shape), tensor.bytes.data());
    for (int size = 2; size <= 5; ++size) {
      Digest128 sum;
      for (int rank = 0; rank < size; ++rank) {
        const Box box = testing::SampleModel::box_of(tensor, rank, size);
        sum += slice_digest(tensor.dtype, box, testing::cut(tensor, box).data());
      }
      EXPECT_EQ(sum, whole) << tensor.name << " cut in " << size;
    }
  }
}

TEST(Digest, TensorDigestSeesEveryBitAndEveryPlace) {
  const testing::SampleModel model;
  for (testing::SampleTensor tensor : model.tensors()) {
    const Digest128 whole =
        slice_digest(tensor.dtype, whole_box(tensor.shape), tensor.bytes.data());
    for (size_t i = 0; i < tensor.bytes.size() * 8; ++i) {
      tensor.bytes[i / 8] = static_cast<char>(tensor.bytes[i / 8] ^ (1 << (i % 8)));
      EXPECT_NE(slice_digest(tensor.dtype, whole_box(tensor.shape), tensor.bytes.data()), whole);
      tensor.bytes[i / 8] = static_cast<char>(tensor.bytes[i / 8] ^ (1 << (i % 8)));
    }
    const size_t element = size_of(tensor.dtype);
    std::rotate(tensor.bytes.begin(), tensor.bytes.begin() + static_cast<std::ptrdiff_t>(element),
                tensor.bytes.end());
    EXPECT_NE(slice_digest(tensor.dtype, whole_box(tensor.shape), tensor.bytes.data()), whole);
  }
}

TEST(Digest, PartsOfASliceAddUp) {
  const testing::SampleModel model;
  for (const testing::SampleTensor& tensor : model.tensors()) {
    const Box box = testing::SampleModel::box_of(tensor, 1, 2);
    const std::vector<char> bytes = testing::cut(tensor, box);
    const Digest128 whole = slice_digest(tensor.dtype, box, bytes.data());
    for (int64_t step = 1; step <= box.numel(); ++step) {
      Digest128 sum;
      for (int64_t first = 0; first < box.numel(); first += step)
        sum += slice_digest(tensor.dtype, box,
                            bytes.data() + static_cast<size_t>(first) * size_of(tensor.dtype),
                            first, std::min(step, box.numel() - first));
      ASSERT_EQ(sum, whole) << tensor.name << " in parts of " << step;
    }
  }
}

}  // namespace
}  // namespace ferry
