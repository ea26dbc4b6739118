#include "app/saved_step.h"

#include <memory>

namespace ferry {
namespace {

struct PassUnderWay {
  PassUnderWay(const PassRecords& costs, SavedLedger& ledger) : tape(costs.tensors, ledger) {}

  SavedTape tape;
  std::unique_ptr<SavedGroups> groups;
  std::unique_ptr<SavedLayers> layers;
  std::unique_ptr<SavedStash> stash;

  std::vector<SavedMover*> movers() const {
    std::vector<SavedMover*> all;
    if (groups) all.push_back(groups.get());
    if (layers) all.push_back(layers.get());
    if (stash) all.push_back(stash.get());
    return all;
  }
};

class StepRun {
 public:
  explicit StepRun(const SavedStep& step) : step_(step), order_(backward_order(step.actions)) {}

  SavedStepMemory run() {
    for (; action_ < step_.actions.size(); ++action_) {
      const auto& [forward, id] = step_.actions[action_];
      if (forward) {
        const PassRecords& costs = step_.chunks.at(static_cast<size_t>(id.chunk));
        PassUnderWay& pass = begin(id, costs);
        save_pass(costs, pass.tape, pass.movers());
        if (pass.stash) memory_.stashed[id] = pass.stash->stashed();
      } else {
        ++num_back_;
        PassUnderWay& pass = *passes_.at(id);
        load_pass(pass.tape, pass.movers());
        passes_.erase(id);
      }
    }
    return std::move(memory_);
  }

 private:
  PassUnderWay& begin(PassId id, const PassRecords& costs) {
    SavedLedger& ledger = memory_.ledger;
    PassUnderWay& pass = *(passes_[id] = std::make_unique<PassUnderWay>(costs, ledger));
    if (!step_.offloaded.modules.empty()) {
      const PassGroups& plan = plan_of(id);
      pass.groups = std::make_unique<SavedGroups>(
          step_.offloaded, pass.tape, ledger,
          [&plan](size_t group) { return plan.groups.at(group).offload; },
          [this] {
            PassUnderWay* next = num_back_ < order_.size() ? find(order_[num_back_]) : nullptr;
            if (next != nullptr) next->groups->reload_newest();
          });
    }
    if (step_.layers.num_layers > 0)
      pass.layers = std::make_unique<SavedLayers>(step_.layers, pass.tape, ledger);
    if (step_.stash)
      pass.stash = std::make_unique<SavedStash>(
          costs, returns_at_once(step_.actions, id), step_.stash_capacity_factor, pass.tape, ledger,
          packing_, [this] {
            const bool is_last = action_ + 1 == step_.actions.size();
            if (is_last || step_.actions[action_ + 1].forward) return;
            if (PassUnderWay* next = find(step_.actions[action_ + 1].pass))
              next->stash->unpack_newest();
          });
    return pass;
  }

  const PassGroups& plan_of(PassId id) const {
    for (const PassGroups& pass : step_.moving)
      if (pass.pass == id) return pass;
    fail(ExitCode::Internal, "micro-batch ", id.micro, " of chunk ", id.chunk, " has no groups");
  }
  PassUnderWay* find(PassId id) const {
    const auto found = passes_.find(id);
    return found == passes_.end() ? nullptr : found->second.get();
  }

  const SavedStep& step_;
  std::vector<PassId> order_;
  size_t num_back_ = 0;  // passes that have begun backward
  size_t action_ = 0;
  std::map<PassId, std::unique_ptr<PassUnderWay>> passes_;
  int64_t packing_ = 0;
  SavedStepMemory memory_;
};

}  // namespace

SavedStepMemory run_step(const SavedStep& step) { return StepRun(step).run(); }

}  // namespace ferry
