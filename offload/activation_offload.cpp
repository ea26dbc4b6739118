#include "offload/activation_offload.h"

#include <algorithm>
#include <utility>

namespace ferry {
namespace {

class HostResidence final : public Residence {
 public:
  explicit HostResidence(CopyEngine& engine) : engine_(engine) {}
  void set(std::shared_ptr<HostedTensor> hosted) { hosted_ = std::move(hosted); }
  Tensor bring_back(Stream& stream) override { return engine_.bring_back(*hosted_, stream); }

 private:
  CopyEngine& engine_;
  std::shared_ptr<HostedTensor> hosted_;
};

}  // namespace

// One pass: its groups in the order of forward, and which of them are where.
class ActivationOffload::Pass final : public TapePolicy {
 public:
  Pass(ActivationOffload& owner, PassId id) : owner_(owner), plan_(owner.groups_of(id)), id_(id) {}

  void saved(Record& record, Stream& stream) override {
    const auto found = owner_.config_.modules.find(record.label);
    const bool is_moved = found != owner_.config_.modules.end();
    for (size_t i = 0; i < pending_.size();) {
      const Group& group = groups_[pending_[i]];
      const bool goes_on = is_moved && found->second == group.module && !ends_branch(record.label);
      const bool leaves = begins_branch(group.label) ? ends_branch(record.label) : !goes_on;
      if (leaves)
        leave(pending_[i], stream);
      else
        ++i;
    }
    if (!is_moved) return record_groups_.push_back(std::nullopt);
    if (pending_.empty() || groups_[pending_.back()].module != found->second)
      start_group(record.label, found->second);
    Group& group = groups_[pending_.back()];
    for (const auto& tensor : record.tensors)
      if (tensor) group.tensors.push_back(tensor);
    group.ready = stream.record();
    record_groups_.push_back(pending_.back());
    owner_.keep_pace(stream);
  }

  void forward_done(Stream& stream) override {
    while (!pending_.empty()) leave(pending_.front(), stream);
    owner_.commit_waiting(stream);
    forward_done_ = true;
  }

  void loading(Record&, Stream& stream) override {
    CHECK(!record_groups_.empty(), "a record is loaded that was not saved");
    if (!backward_begun_) owner_.backward_cursor_ = owner_.position(id_) + 1;
    backward_begun_ = true;
    const std::optional<size_t> group = record_groups_.back();
    record_groups_.pop_back();
    if (in_use_ && in_use_ != group) reload_next(stream);
    in_use_ = group;
    if (!group) return;
    // What is used now is not what comes back next; its tensors wait for their own copies.
    std::erase(away_, *group);
    owner_.keep_pace(stream);
  }

  void backward_done(Stream& stream) override {
    CHECK(record_groups_.empty(), "records of a pass were not loaded");
    if (in_use_) reload_next(stream);
    groups_.clear();
  }

  // The tensors of a group leave, if they are to.
  void commit(size_t index, Stream& stream) {
    Group& group = groups_[index];
    std::vector<std::shared_ptr<SavedTensor>> leaving;
    int64_t bytes = 0;
    for (const auto& weak : group.tensors) {
      auto tensor = weak.lock();
      if (!tensor || !tensor->on_device() || !owns(group, *tensor)) continue;
      if (tensor->shape().numel() < owner_.config_.min_tensor_elements) continue;
      if (std::find(leaving.begin(), leaving.end(), tensor) != leaving.end()) continue;
      bytes += tensor->bytes();
      leaving.push_back(std::move(tensor));
    }
    group.tensors.clear();
    if (owner_.measuring_) plan_.groups[group.planned].bytes = bytes;
    if (leaving.empty() || !moves(group)) return;
    for (const auto& tensor : leaving) {
      // From the tape to the engine, so that its bytes are counted once.
      const Tensor device = tensor->get(stream);
      auto residence = std::make_unique<HostResidence>(owner_.engine_);
      HostResidence& place = *residence;
      tensor->move_to(std::move(residence));
      group.hosted.push_back(owner_.engine_.to_host(device, group.ready, group.module));
      place.set(group.hosted.back());
    }
    leaving.clear();
    away_.push_back(index);
    limit_copies(group, stream);
  }

 private:
  struct Group {
    Label label;  // of its first record
    std::string module;
    size_t planned;  // its place in the plan, or beyond
    std::vector<std::weak_ptr<SavedTensor>> tensors;
    Event ready;
    std::vector<std::shared_ptr<HostedTensor>> hosted;
  };

  void start_group(Label label, const std::string& module) {
    if (owner_.measuring_) {
      plan_.groups.push_back({module, 0, true});
    } else {
      // Groups that do not run this time are skipped.
      while (cursor_ < plan_.groups.size() && plan_.groups[cursor_].module != module) ++cursor_;
    }
    pending_.push_back(groups_.size());
    groups_.push_back({label, module, cursor_++, {}, {}, {}});
  }

  // The group's module is done.
  void leave(size_t index, Stream& stream) {
    std::erase(pending_, index);
    if (owner_.has_launches_ && owner_.config_.waits_for_launch)
      owner_.waiting_.emplace_back(this, index);
    else
      commit(index, stream);
  }

  // A tensor that a later module saved, too, is that module's.
  bool owns(const Group& group, const SavedTensor& tensor) const {
    const auto found = owner_.config_.modules.find(tensor.label());
    return found != owner_.config_.modules.end() && found->second == group.module;
  }

  bool moves(const Group& group) const {
    if (owner_.measuring_) return true;
    if (group.planned >= plan_.groups.size() || !plan_.groups[group.planned].offload) return false;
    return !needed_at_once(group);
  }

  // The pass comes back next, and this is the last group of its module.
  bool needed_at_once(const Group& group) const {
    const auto has_module = [&](const PassGroups& pass) {
      return std::any_of(pass.groups.begin(), pass.groups.end(),
                         [&](const OffloadGroup& other) { return other.module == group.module; });
    };
    const auto next =
        std::find_if(owner_.passes_.begin() + static_cast<ptrdiff_t>(owner_.backward_cursor_),
                     owner_.passes_.end(), has_module);
    if (next == owner_.passes_.end() || next->pass != id_) return false;
    return std::none_of(plan_.groups.begin() + static_cast<ptrdiff_t>(group.planned) + 1,
                        plan_.groups.end(),
                        [&](const OffloadGroup& other) { return other.module == group.module; });
  }

  void limit_copies(const Group& group, Stream& stream) {
    if (!owner_.config_.max_inflight) return;
    std::deque<std::shared_ptr<HostedTensor>>& copies = under_way_[group.module];
    copies.push_back(group.hosted.back());  // the last of the group: copies are done in order
    while (std::ssize(copies) > *owner_.config_.max_inflight) {
      owner_.engine_.join(stream, *copies.front());
      copies.pop_front();
    }
  }

  // A group was used: the next one starts on its way back.
  void reload_next(Stream& stream) {
    if (away_.empty()) {
      Pass* next = owner_.next_back();
      if (next != nullptr && next->forward_done_ && !next->away_.empty())
        next->reload_newest(stream);
      return;
    }
    reload_newest(stream);
  }

  void reload_newest(Stream& stream) {
    // A record of another module may have needed one of them already.
    for (const auto& hosted : groups_[away_.back()].hosted)
      if (hosted->away()) owner_.engine_.reload(*hosted, stream);
    away_.pop_back();
  }

  ActivationOffload& owner_;
  PassGroups& plan_;
  PassId id_;
  std::vector<Group> groups_;
  std::vector<size_t> pending_;                       // started, in order
  std::vector<size_t> away_;                          // on the host, in the order of leaving
  std::vector<std::optional<size_t>> record_groups_;  // of each record on the tape
  std::map<std::string, std::deque<std::shared_ptr<HostedTensor>>> under_way_;
  size_t cursor_ = 0;             // in the plan
  std::optional<size_t> in_use_;  // the group of the record that backward loaded last
  bool forward_done_ = false, backward_begun_ = false;
};

ActivationOffload::ActivationOffload(Device& device, ActivationOffloadConfig config,
                                     MemoryLedger* ledger)
    : config_(std::move(config)), engine_(device, ledger, config_.takes_back) {}

ActivationOffload::~ActivationOffload() = default;

void ActivationOffload::begin_step(std::span<const PassAction> actions, Stream&) {
  if (!std::equal(actions.begin(), actions.end(), actions_.begin(), actions_.end())) {
    actions_.assign(actions.begin(), actions.end());
    passes_.clear();
    for (const PassId& pass : backward_order(actions)) passes_.push_back({pass, {}});
    measured_ = false;
  }
  measuring_ = !measured_;
  if (measuring_)
    for (PassGroups& pass : passes_) pass.groups.clear();
  CHECK(waiting_.empty(), waiting_.size(), " groups of the last step did not leave");
  running_.clear();
  has_launches_ = false;
  lead_.clear();
  backward_cursor_ = 0;
  engine_.start_counting();
}

TapePolicy& ActivationOffload::policy(PassId pass) {
  const auto [entry, is_new] = running_.emplace(pass, nullptr);
  CHECK(is_new, "micro-batch ", pass.micro, " goes through chunk ", pass.chunk, " twice");
  entry->second = std::make_unique<Pass>(*this, pass);
  return *entry->second;
}

void ActivationOffload::end_step(Stream&) {
  if (!std::exchange(measuring_, false)) return;
  plan_offload(passes_, config_.rules);
  measured_ = true;
}

TrafficByModule ActivationOffload::traffic() const { return engine_.traffic(); }

void ActivationOffload::commit_waiting(Stream& compute) {
  for (const auto& [pass, group] : std::exchange(waiting_, {})) pass->commit(group, compute);
}

void ActivationOffload::part_launched(Stream& compute) {
  has_launches_ = true;
  commit_waiting(compute);
}

void ActivationOffload::launched(PassId pass) {
  backward_cursor_ = position(pass) + 1;
  engine_.count_launch();
}

std::map<std::string, int64_t> ActivationOffload::summary() const {
  if (!measured_) return {};
  return resident_bytes(actions_, passes_);
}

void ActivationOffload::set_plan(std::vector<PassGroups> passes) {
  CHECK(measured_ && passes.size() == passes_.size(), "a plan of other passes");
  passes_ = std::move(passes);
}

size_t ActivationOffload::position(PassId pass) const {
  for (size_t i = 0; i < passes_.size(); ++i)
    if (passes_[i].pass == pass) return i;
  fail(ExitCode::Internal, "micro-batch ", pass.micro, " of chunk ", pass.chunk,
       " is not in the schedule of this step");
}

PassGroups& ActivationOffload::groups_of(PassId pass) { return passes_[position(pass)]; }

ActivationOffload::Pass* ActivationOffload::next_back() {
  if (backward_cursor_ >= passes_.size()) return nullptr;
  const auto found = running_.find(passes_[backward_cursor_].pass);
  return found == running_.end() ? nullptr : found->second.get();
}

// Memory is given back when the host sees that its copy is done. A host that enqueues far ahead of
// the device would see that too late, and new memory would be taken meanwhile.
void ActivationOffload::keep_pace(Stream& compute) {
  if (compute.is_captured()) return;
  engine_.release_finished();
  if (!engine_.has_copies_under_way()) return lead_.clear();
  const size_t max_lead = 3;  // groups: long enough that the device does not run dry
  lead_.push_back(compute.record());
  while (lead_.size() > max_lead) {
    lead_.front().wait_host();
    lead_.pop_front();
  }
  engine_.release_finished();
}

}  // namespace ferry
