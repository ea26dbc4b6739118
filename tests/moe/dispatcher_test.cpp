#include "moe/dispatcher.h"

#include <gmock/gmock.h>

#include "moe/all_gather_dispatcher.h"
#include "moe/all_to_all_dispatcher.h"
#include "moe/local_dispatcher.h"

namespace ferry::testing {
namespace {

template <class Kind>
bool is(const std::unique_ptr<Dispatcher>& dispatcher) {
  return dynamic_cast<const Kind*>(dispatcher.get()) != nullptr;
}

// Without groups: a model may be described only.
TEST(Dispatcher, KindMattersOnSeveralRanksOnly) {
  for (const char* kind : {"alltoall", "allgather"})
    EXPECT_TRUE(is<LocalDispatcher>(make_dispatcher(kind, 8, {}))) << kind;
  for (const ExpertParallel& experts :
       {ExpertParallel{.ep_size = 2}, ExpertParallel{.etp_size = 2}}) {
    EXPECT_TRUE(is<AllToAllDispatcher>(make_dispatcher("alltoall", 8, experts)));
    EXPECT_TRUE(is<AllGatherDispatcher>(make_dispatcher("allgather", 8, experts)));
    // Whoever shares experts copies tokens, whether they are to be read in place or not.
    EXPECT_TRUE(is<AllToAllDispatcher>(make_dispatcher("alltoall", 8, experts, true)));
    EXPECT_TRUE(is<AllGatherDispatcher>(make_dispatcher("allgather", 8, experts, true)));
    EXPECT_THAT(
        [&] { make_dispatcher("pigeon", 8, experts); },
        ::testing::ThrowsMessage<Error>(::testing::HasSubstr("no dispatcher is called pigeon")));
  }
}

}  // namespace
}  // namespace ferry::testing
