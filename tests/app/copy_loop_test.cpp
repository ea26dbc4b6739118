#include "app/copy_loop.h"

#include <gmock/gmock.h>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class CopyLoops : public CpuTest {
 protected:
  Tensor memory(int64_t elements) { return Tensor::host(device(), "t", {elements}, DType::F32); }
};

TEST_F(CopyLoops, CopiesAtLeastOnceAndGivesARate) {
  const Tensor from = random_tensor(stream(), {1000}, DType::F32, 1), to = memory(1000);
  stream().synchronize();
  CopyLoop loop(device(), to, from);
  EXPECT_GT(loop.stop(), 0);
  expect_same_bits(stream(), to, from);
  EXPECT_THAT([&] { loop.stop(); }, ThrowsMessage<Error>(HasSubstr("stopped once")));
}

TEST_F(CopyLoops, EndsWithoutBeingStopped) {
  const Tensor from = random_tensor(stream(), {1000}, DType::F32, 1), to = memory(1000);
  stream().synchronize();
  { const CopyLoop loop(device(), to, from); }
  expect_same_bits(stream(), to, from);
}

TEST_F(CopyLoops, StopThrowsTheErrorOfACopy) {
  CopyLoop loop(device(), memory(10), memory(11));
  EXPECT_THROW(loop.stop(), Error);
}

}  // namespace
}  // namespace ferry::testing
