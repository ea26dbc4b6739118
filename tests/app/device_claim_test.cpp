#include "app/device_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const DeviceClaim kCpu{"node-a", 0, ""};

DeviceClaim gpu(const std::string& host, int num_gpus, const std::string& place) {
  return {host, num_gpus, place};
}

TEST(DeviceClaim, TravelsAsText) {
  for (const DeviceClaim& claim : {kCpu, gpu("node b", 8, "0000:1B:00.0")}) {
    const DeviceClaim read = claim_from_text(to_text(claim));
    EXPECT_EQ(read.host, claim.host);
    EXPECT_EQ(read.num_gpus, claim.num_gpus);
    EXPECT_EQ(read.gpu, claim.gpu);
  }
}

TEST(JudgeDevices, AllOnCpusOrEachOnItsGpu) {
  for (const char* wanted : {"auto", "cpu"}) {
    const DeviceVerdict verdict = judge_devices({kCpu, kCpu}, wanted, false);
    EXPECT_EQ(verdict.refusal, "");
    EXPECT_EQ(verdict.ranks_sharing, 0);
  }
  // Equal places on two hosts are two GPUs; a rank may see only its own.
  const DeviceVerdict verdict = judge_devices(
      {gpu("a", 2, "0:1"), gpu("a", 2, "0:2"), gpu("b", 1, "0:1"), gpu("b", 1, "0:2")}, "cuda",
      false);
  EXPECT_EQ(verdict.refusal, "");
  EXPECT_EQ(verdict.ranks_sharing, 0);
}

TEST(JudgeDevices, RefusesFewerGpusThanRanks) {
  const std::vector<DeviceClaim> claims = {gpu("a", 1, "0:1"), gpu("b", 2, "0:1"),
                                           gpu("b", 2, "0:2"), gpu("b", 2, "0:1")};
  const DeviceVerdict refused = judge_devices(claims, "auto", false);
  EXPECT_THAT(refused.refusal, AllOf(HasSubstr("error: ranks 1 and 3 would share a GPU"),
                                     HasSubstr("--> rank 3 on b"), HasSubstr("3 ranks run there"),
                                     HasSubstr("rank 3 sees 2 GPU(s), of which it takes 0:1"),
                                     HasSubstr("parallel.share_gpu=true")));
  const DeviceVerdict allowed = judge_devices(claims, "auto", true);
  EXPECT_EQ(allowed.refusal, "");
  EXPECT_EQ(allowed.ranks_sharing, 2);
}

TEST(JudgeDevices, RefusesARankWithoutTheGpuThatIsWanted) {
  EXPECT_THAT(judge_devices({gpu("a", 1, "0:1"), kCpu}, "cuda", true).refusal,
              AllOf(HasSubstr("run.backend = \"cuda\", but no GPU can be used"),
                    HasSubstr("--> rank 1 on node-a"), HasSubstr("try : run.backend=cpu")));
}

TEST(JudgeDevices, RefusesGpusForSomeRanksOnly) {
  EXPECT_THAT(judge_devices({gpu("a", 4, "0:1"), kCpu}, "auto", false).refusal,
              AllOf(HasSubstr("some ranks have a GPU and some have none"),
                    HasSubstr("--> rank 1 on node-a"), HasSubstr("rank 0 on a sees 4 GPU(s)")));
}

}  // namespace
}  // namespace ferry
