#include "offload/auto_offload.h"

#include <algorithm>
#include <cstdio>

namespace ferry {

// Stamps the two directions of a pass; everything else is the inner policy's.
class AutoOffload::TimedPass final : public TapePolicy {
 public:
  TimedPass(TapePolicy& inner, Stream& compute) : inner_(inner) {
    forward_.begin = compute.stamp();
  }
  void saved(Record& record, Stream& stream) override { inner_.saved(record, stream); }
  void forward_done(Stream& stream) override {
    inner_.forward_done(stream);
    forward_.end = stream.stamp();
  }
  void loading(Record& record, Stream& stream) override {
    if (!backward_.begin) backward_.begin = stream.stamp();
    inner_.loading(record, stream);
  }
  void backward_done(Stream& stream) override {
    inner_.backward_done(stream);
    backward_.end = stream.stamp();
  }

  PassSeconds seconds() const { return {forward_.seconds(), backward_.seconds()}; }

 private:
  TapePolicy& inner_;
  Span forward_, backward_;
};

namespace {

std::vector<PassGroups> with_none(std::vector<PassGroups> passes) {
  for (PassGroups& pass : passes)
    for (OffloadGroup& group : pass.groups) group.offload = false;
  return passes;
}

PassSeconds median(std::vector<PassSeconds> passes) {
  const auto middle = [&](double PassSeconds::*part) {
    std::vector<double> values;
    for (const PassSeconds& pass : passes) values.push_back(pass.*part);
    std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
    return values[values.size() / 2];
  };
  return {middle(&PassSeconds::forward), middle(&PassSeconds::backward)};
}

}  // namespace

AutoOffload::Rates measure_copy_rates(Device& device) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int kTimes = 4;
  const auto stream = device.make_stream("copy rates");
  const Tensor host = Tensor::host(device, "copy rates", {kBytes}, DType::U8);
  const Tensor memory = Tensor::empty(*stream, "copy rates", {kBytes}, DType::U8);
  stream->zero(memory);
  const auto best_rate = [&](const Tensor& to, const Tensor& from) {
    double best = 0;
    for (int i = 0; i < kTimes; ++i) {
      const auto begin = stream->stamp();
      stream->copy(to, from);
      const auto end = stream->stamp();
      best = std::max(best, static_cast<double>(kBytes) / end->seconds_since(*begin));
    }
    return best;
  };
  const double down = best_rate(host, memory);
  return {down, best_rate(memory, host)};
}

AutoOffload::AutoOffload(Device& device, const ActivationOffloadConfig& config, double budget,
                         MemoryLedger* ledger)
    : offload_(device, config, ledger),
      budget_(budget),
      rates_(measure_copy_rates(device)),
      max_inflight_(config.max_inflight) {}

AutoOffload::~AutoOffload() = default;

void AutoOffload::begin_step(std::span<const PassAction> actions, Stream& compute) {
  if (!std::equal(actions.begin(), actions.end(), actions_.begin(), actions_.end())) {
    actions_.assign(actions.begin(), actions.end());
    phase_ = Phase::Sizes;
    choice_.reset();
    seconds_without_ = 0;
    step_ = {};
  }
  if (phase_ == Phase::Times) offload_.set_plan(with_none(*offload_.plan()));
  step_follows_choice_ = phase_ == Phase::Chosen;
  timed_.clear();
  compute_ = &compute;
  offload_.begin_step(actions, compute);
  step_.begin = compute.stamp();
}

TapePolicy& AutoOffload::policy(PassId pass) {
  TapePolicy& inner = offload_.policy(pass);
  if (phase_ != Phase::Times) return inner;
  const auto entry = timed_.emplace(pass, std::make_unique<TimedPass>(inner, *compute_)).first;
  return *entry->second;
}

void AutoOffload::end_step(Stream& compute) {
  offload_.end_step(compute);
  step_.end = compute.stamp();
  if (phase_ == Phase::Times) choose();
  if (phase_ == Phase::Sizes) phase_ = Phase::Times;
}

void AutoOffload::choose() {
  std::vector<std::vector<PassSeconds>> by_chunk;
  for (const auto& [pass, timed] : timed_) {
    by_chunk.resize(std::max<size_t>(by_chunk.size(), static_cast<size_t>(pass.chunk) + 1));
    by_chunk[static_cast<size_t>(pass.chunk)].push_back(timed->seconds());
  }
  OffloadConditions conditions;
  for (const auto& passes : by_chunk) conditions.chunks.push_back(median(passes));
  conditions.d2h_bytes_per_s = rates_.d2h_bytes_per_s;
  conditions.h2d_bytes_per_s = rates_.h2d_bytes_per_s;
  conditions.max_inflight = max_inflight_;
  seconds_without_ = step_.seconds();
  choice_ = choose_groups(actions_, *offload_.plan(), conditions, budget_);
  offload_.set_plan(choice_->passes);
  phase_ = Phase::Chosen;
}

double AutoOffload::seconds_with() const { return step_follows_choice_ ? step_.seconds() : 0; }

std::string auto_offload_text(const AutoOffload& offload, int64_t saved_bytes) {
  if (!offload.choice()) return "activation offload: measuring";
  const BudgetChoice& choice = *offload.choice();
  const double with = offload.seconds_with(), without = offload.seconds_without();
  char text[320];
  std::snprintf(
      text, sizeof(text),
      "activation offload chose %lld of %lld groups, copies at %.1f and %.1f GB/s: "
      "predicted +%.1f %% and %.2f GiB saved",
      static_cast<long long>(choice.num_groups), static_cast<long long>(choice.num_candidates),
      offload.rates().d2h_bytes_per_s / 1e9, offload.rates().h2d_bytes_per_s / 1e9,
      100 * choice.forecast.cost(), static_cast<double>(choice.forecast.saved_bytes()) / (1 << 30));
  std::string line = text;
  if (with == 0 || without == 0) return line;
  std::snprintf(text, sizeof(text), ", achieved %+.1f %% and %.2f GiB", 100 * (with / without - 1),
                static_cast<double>(saved_bytes) / (1 << 30));
  return line + text;
}

}  // namespace ferry
