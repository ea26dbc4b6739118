#include "moe/dispatcher.h"

#include "moe/all_gather_dispatcher.h"
#include "moe/all_to_all_dispatcher.h"
#include "moe/local_dispatcher.h"

namespace ferry {

std::unique_ptr<Dispatcher> make_dispatcher(const std::string& kind, int64_t num_experts,
                                            const ExpertParallel& experts) {
  if (experts.size() == 1) return std::make_unique<LocalDispatcher>();
  if (kind == "allgather") return std::make_unique<AllGatherDispatcher>(num_experts, experts);
  CHECK(kind == "alltoall", "no dispatcher is called ", kind);
  return std::make_unique<AllToAllDispatcher>(num_experts, experts);
}

}  // namespace ferry
