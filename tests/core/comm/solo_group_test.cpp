#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/comm/group.h"
#include "tests/core/comm/group_checks.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SoloGroup : public CpuTest {};

TEST_F(SoloGroup, AgreesWithTheReference) {
  const auto group = make_solo_group();
  EXPECT_EQ(group->name(), "solo");
  for (const DType dtype : kAllDTypes)
    for (const GroupCheck& check : group_checks()) {
      SCOPED_TRACE(check_name(check, dtype));
      check.run(*group, stream(), dtype);
    }
}

TEST_F(SoloGroup, HasNobodyToTalkTo) {
  const auto group = make_solo_group("dp[0]");
  const Tensor x = unwritten(stream(), {1}, DType::F32);
  EXPECT_THAT([&] { group->send(stream(), x, 1); },
              ThrowsMessage<Error>(HasSubstr("group dp[0] has one rank, so no rank 1")));
  EXPECT_THAT([&] { group->receive(stream(), x, 0); },
              ThrowsMessage<Error>(HasSubstr("no rank 0")));
  EXPECT_THAT([&] { group->broadcast(stream(), x, 1); }, ThrowsMessage<Error>(HasSubstr("root 1")));
}

}  // namespace
}  // namespace ferry::testing
