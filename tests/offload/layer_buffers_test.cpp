#include "offload/layer_buffers.h"

#include <gtest/gtest.h>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

class LayerBuffersTest : public CpuTest {
 protected:
  std::shared_ptr<SavedTensor> saved(const Shape& shape, DType dtype) {
    return std::make_shared<SavedTensor>(zeros(stream(), shape, dtype), Label::Mlp, nullptr);
  }
};

TEST_F(LayerBuffersTest, HostMemoryIsHandedOutAgainIfItIsRetained) {
  HostBuffers buffers(device(), true);
  auto buffer = buffers.take(1000, DType::F32);
  EXPECT_GE(buffer.memory.numel(), 1000);
  EXPECT_LE(buffer.memory.numel(), 1125);
  EXPECT_EQ(buffer.view({10, 100}).shape(), (Shape{10, 100}));
  EXPECT_EQ(buffer.unused.state(), nullptr);
  const void* data = buffer.memory.raw();
  const Event copied = stream().record();
  buffers.give_back(std::move(buffer), copied);
  EXPECT_NE(buffers.take(1000, DType::BF16).memory.raw(), data);
  EXPECT_NE(buffers.take(2000, DType::F32).memory.raw(), data);
  const auto again = buffers.take(990, DType::F32);
  EXPECT_EQ(again.memory.raw(), data);
  EXPECT_EQ(again.unused.state(), copied.state());
  EXPECT_NE(buffers.take(990, DType::F32).memory.raw(), data);
}

TEST_F(LayerBuffersTest, HostMemoryIsGivenBackOtherwise) {
  HostBuffers buffers(device(), false);
  auto buffer = buffers.take(1000, DType::F32);
  EXPECT_EQ(buffer.memory.numel(), 1000);
  const int64_t held = device().memory().current();
  buffers.give_back(std::move(buffer), Event());
  EXPECT_EQ(device().memory().current(), held - 4000);
}

TEST_F(LayerBuffersTest, TwoDeviceBuffersTakeTurns) {
  DoubleBuffer buffers;
  SavedTensors large = {saved({30}, DType::F32), saved({7}, DType::BF16),
                        saved({2, 9}, DType::F32)};
  SavedTensors small = {saved({5}, DType::F32), saved({3}, DType::BF16)};
  SavedTensors third = {saved({30}, DType::F32)};
  buffers.expect(large);
  const auto first = buffers.take(stream(), large);
  const auto second = buffers.take(stream(), small);
  ASSERT_TRUE(first && second);
  EXPECT_EQ((*first)[2].shape(), (Shape{2, 9}));
  EXPECT_EQ((*first)[0].storage(), (*first)[2].storage());
  EXPECT_EQ((*first)[2].byte_offset() % 256, 0);
  EXPECT_GE((*first)[2].byte_offset(), (*first)[0].bytes());
  EXPECT_NE((*first)[0].storage(), (*second)[0].storage());
  EXPECT_EQ((*first)[0].storage()->bytes(), (*second)[0].storage()->bytes());  // of the largest

  EXPECT_FALSE(buffers.take(stream(), third));
  large.clear();
  const auto again = buffers.take(stream(), third);
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)[0].storage(), (*first)[0].storage());
}

TEST_F(LayerBuffersTest, ADeviceBufferGrowsForALargerLayer) {
  DoubleBuffer buffers;
  SavedTensors small = {saved({5}, DType::F32)};
  buffers.take(stream(), small);
  small.clear();
  const SavedTensors other = {saved({5}, DType::F32)};
  buffers.take(stream(), other);
  const SavedTensors large = {saved({500}, DType::F32)};
  buffers.expect(large);
  const auto tensors = buffers.take(stream(), large);
  ASSERT_TRUE(tensors);
  EXPECT_GE((*tensors)[0].storage()->bytes(), 2000);
}

}  // namespace
}  // namespace ferry::testing
