#include "offload/paged_stash.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "core/host_copy.h"

namespace ferry {
namespace {

constexpr char kModule[] = "paged_stash";

// Vectors, one number of each row, are not worth it.
bool has_rows(const SavedTensor& saved, const Shape& shape) {
  return saved.on_device() && shape.rank() == 2;
}

// A tensor of the step that is measured: its rows in use alone, until it is needed.
class ExactResidence final : public Residence {
 public:
  ExactResidence(Stream& stream, const Tensor& tensor, int64_t num_rows, Label label)
      : exact_(Tensor::empty(stream, name_of(label), {num_rows, tensor.dim(1)}, tensor.dtype())),
        shape_(tensor.shape()),
        label_(label) {
    stream.copy(exact_, tensor.rows(0, num_rows));
  }
  Tensor bring_back(Stream& stream) override {
    const Tensor tensor = Tensor::empty(stream, name_of(label_), shape_, exact_.dtype());
    stream.copy(tensor.rows(0, exact_.dim(0)), exact_);
    stream.zero(tensor.rows(exact_.dim(0), tensor.dim(0)));
    return tensor;
  }

 private:
  Tensor exact_;
  Shape shape_;
  Label label_;
};

}  // namespace

// A tensor that is in pages, or on its way back.
struct PagedStash::PagedTensor {
  PagePool pool;
  PageList list;
  Tensor num_rows;
  Shape shape;
  Label label;
  Tensor device;  // after unpack()
  Event unpacked;
};

class PagedStash::PagedResidence final : public Residence {
 public:
  PagedResidence(PagedStash& stash, std::shared_ptr<PagedTensor> paged)
      : stash_(stash), paged_(std::move(paged)) {}
  Tensor bring_back(Stream& stream) override {
    stash_.unpack(stream, {&paged_, 1});
    stash_.wait(stream, paged_->unpacked);
    return std::exchange(paged_->device, Tensor());
  }

 private:
  PagedStash& stash_;
  std::shared_ptr<PagedTensor> paged_;
};

// One pass: its groups, of which the newest comes back first.
class PagedStash::Pass final : public TapePolicy {
 public:
  Pass(PagedStash& owner, PassId id)
      : owner_(owner), id_(id), last_stays_(returns_at_once(owner.actions_, id)) {
    const auto found = owner.passes_.find(id);
    if (owner.mode_ == Mode::Stash && found != owner.passes_.end()) measured_ = &found->second;
  }

  void saved(Record& record, Stream& stream) override {
    if (!takes(record)) return;
    if (groups_.empty() || !groups_.back().num_rows.same_memory(record.num_rows)) {
      owner_.join(stream);
      groups_.push_back({record.num_rows, num_groups_++, 0, -1, {}, {}});
    }
    Group& group = groups_.back();
    ++group.num_records;
    for (size_t i = 0; i < record.tensors.size(); ++i)
      if (has_rows(*record.tensors[i], record.shapes[i]) &&
          group.seen.insert(record.tensors[i].get()).second)
        put_away(group, *record.tensors[i], record.shapes[i], stream);
  }

  void forward_done(Stream& stream) override {
    if (owner_.mode_ == Mode::Measure) owner_.passes_[id_] = shapes_;
    if (owner_.mode_ == Mode::Stash && !is_as_measured()) owner_.measured_ = false;
    owner_.unpack_after({true, id_}, stream);
  }

  void loading(Record& record, Stream& stream) override {
    if (!takes(record)) return;
    CHECK(!groups_.empty() && groups_.back().num_rows.same_memory(record.num_rows),
          "a record of experts is loaded that was not saved");
    owner_.join(stream);
    unpack_newest(stream);
    if (--groups_.back().num_records > 0) return;
    groups_.pop_back();
    if (groups_.empty())
      owner_.unpack_after({false, id_}, stream);
    else
      unpack_newest(stream);
  }

  void unpack_newest(Stream& stream) {
    if (groups_.empty()) return;
    owner_.unpack(stream, groups_.back().tensors);
    groups_.back().tensors.clear();
  }

 private:
  struct Group {
    Tensor num_rows;  // one tensor for each execution of a layer's experts
    int index;
    int64_t num_records;
    int64_t host_rows;  // num_rows, when the host has asked
    std::set<const SavedTensor*> seen;
    std::vector<std::shared_ptr<PagedTensor>> tensors;  // in pages
  };

  bool takes(const Record& record) const {
    return is_of_experts(record.label) && record.num_rows.defined();
  }

  void put_away(Group& group, SavedTensor& saved, const Shape& shape, Stream& stream) {
    const PoolKey key{saved.dtype(), shape[1]};
    shapes_.push_back({key, group.index, shape[0], 0});
    const Tensor tensor = saved.get(stream).reshape(shape);
    if (owner_.mode_ == Mode::Measure) {
      if (group.host_rows < 0)
        group.host_rows =
            std::min<int64_t>(read_back<int32_t>(stream, group.num_rows)[0], shape[0]);
      shapes_.back().rows = group.host_rows;
      saved.move_to(
          std::make_unique<ExactResidence>(stream, tensor, group.host_rows, saved.label()));
      return;
    }
    // Backward of the last group comes at once: moving it would gain nothing.
    if (measured_ == nullptr || measured_->empty()) return;
    if (last_stays_ && group.index == measured_->back().group) return;
    const auto pool = owner_.pools_.find(key);
    if (pool == owner_.pools_.end()) return;  // the step is unlike the one that was measured
    group.tensors.push_back(
        owner_.pack(stream, tensor, pool->second, group.num_rows, saved.label()));
    saved.move_to(std::make_unique<PagedResidence>(owner_, group.tensors.back()));
  }

  bool is_as_measured() const {
    const auto same = [](const StashedTensor& a, const StashedTensor& b) {
      return a.pool == b.pool && a.group == b.group && a.padded_rows == b.padded_rows;
    };
    return measured_ != nullptr &&
           std::equal(shapes_.begin(), shapes_.end(), measured_->begin(), measured_->end(), same);
  }

  PagedStash& owner_;
  PassId id_;
  bool last_stays_;
  const std::vector<StashedTensor>* measured_ = nullptr;
  std::vector<Group> groups_;
  int num_groups_ = 0;
  std::vector<StashedTensor> shapes_;
};

PagedStash::PagedStash(Device& device, const PagedStashConfig& config)
    : config_(config), stream_(device.make_stream("paged stash")) {
  flags_ = Tensor::empty(*stream_, "paged stash", {kNumStashFlags}, DType::I32);
}

PagedStash::~PagedStash() {
  // Memory of the compute stream may still be read here, if a step ended with an error.
  try {
    stream_->synchronize();
  } catch (const Error& error) {
    std::fprintf(stderr, "ferry: %s\n", error.what());
  }
}

void PagedStash::begin_step(std::span<const PassAction> actions, Stream& compute) {
  stream_->wait(compute.record());  // the flags may still be read there
  stream_->zero(flags_);
  running_.clear();
  waits_.clear();
  mode_ = Mode::Off;
  if (!enabled_) return;
  if (!std::equal(actions.begin(), actions.end(), actions_.begin(), actions_.end())) {
    actions_.assign(actions.begin(), actions.end());
    measured_ = false;
  }
  mode_ = measured_ ? Mode::Stash : Mode::Measure;
  if (mode_ == Mode::Measure) {
    pools_.clear();
    passes_.clear();
    return;
  }
  if (pools_.empty()) make_pools();
  for (const auto& [key, pool] : pools_) reset_pages(*stream_, pool);
}

void PagedStash::make_pools() {
  for (const auto& [key, peak] :
       stash_peaks(actions_, passes_, config_.page_tokens, config_.capacity_factor)) {
    const auto pages = [&, &peak = peak](double factor) {
      return num_stash_pages(peak, factor, config_.page_tokens);
    };
    pools_.emplace(
        key, PagePool::empty(*stream_, "paged stash", key.dtype, key.width, config_.page_tokens,
                             pages(config_.device_factor), pages(config_.host_factor)));
  }
}

TapePolicy& PagedStash::policy(PassId pass) {
  const auto [entry, is_new] = running_.emplace(pass, nullptr);
  CHECK(is_new, "micro-batch ", pass.micro, " goes through chunk ", pass.chunk, " twice");
  if (mode_ == Mode::Off)
    entry->second = std::make_unique<TapePolicy>();
  else
    entry->second = std::make_unique<Pass>(*this, pass);
  return *entry->second;
}

void PagedStash::end_step(Stream& compute) {
  if (mode_ == Mode::Measure) measured_ = true;
  join(compute);
  wait(compute, stream_->record());
}

TrafficByModule PagedStash::traffic() const {
  if (mode_ == Mode::Off) return {};
  ModuleTraffic sum;
  if (mode_ == Mode::Stash) {
    for (const auto& [key, pool] : pools_) {
      const int64_t rows = read_back<int64_t>(*stream_, pool.state)[kHostRows];
      sum.d2h_bytes += rows * key.width * static_cast<int64_t>(size_of(key.dtype));
    }
  }
  sum.h2d_bytes = sum.d2h_bytes;
  for (const Wait& wait : waits_) sum.exposed_s += wait.end->seconds_since(*wait.begin);
  return {{kModule, sum}};
}

std::shared_ptr<PagedStash::PagedTensor> PagedStash::pack(Stream& compute, const Tensor& tensor,
                                                          const PagePool& pool,
                                                          const Tensor& num_rows, Label label) {
  auto paged = std::make_shared<PagedTensor>();
  paged->pool = pool;
  paged->list = PageList::empty(*stream_, pool, tensor.dim(0));
  paged->num_rows = num_rows;
  paged->shape = tensor.shape();
  paged->label = label;
  stream_->wait(compute.record());
  stash_pages(*stream_, pool, paged->list, flags_, tensor, num_rows);
  packing_.push_back({tensor, stream_->record()});
  return paged;
}

void PagedStash::unpack(Stream& compute, std::span<const std::shared_ptr<PagedTensor>> tensors) {
  std::vector<PagedTensor*> returning;
  for (const auto& paged : tensors) {
    if (paged->device.defined()) continue;
    paged->device =
        Tensor::empty(compute, name_of(paged->label), paged->shape, paged->pool.pages.dtype());
    returning.push_back(paged.get());
  }
  if (returning.empty()) return;
  // The new memory may still be in use by what was enqueued on compute before it was freed.
  stream_->wait(compute.record());
  for (PagedTensor* paged : returning) {
    unstash_pages(*stream_, paged->device, paged->pool, paged->list, paged->num_rows);
    paged->unpacked = stream_->record();
  }
}

void PagedStash::unpack_after(const PassAction& action, Stream& compute) {
  const PassAction* next = next_action(actions_, action);
  if (next == nullptr || next->forward || mode_ != Mode::Stash) return;
  const auto found = running_.find(next->pass);
  if (found != running_.end()) static_cast<Pass&>(*found->second).unpack_newest(compute);
}

void PagedStash::join(Stream& compute) {
  if (packing_.empty()) return;
  wait(compute, packing_.back().done);
  packing_.clear();
}

void PagedStash::wait(Stream& compute, const Event& event) {
  const auto begin = compute.stamp();
  compute.wait(event);
  waits_.push_back({begin, compute.stamp()});
}

}  // namespace ferry
