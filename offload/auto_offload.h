#pragma once

// Activation offload that keeps to a budget of time (activation_offload.auto_budget): it measures,
// and then moves as many bytes as a step that is at most that much longer allows.
//
//   step 1    every candidate group moves: their bytes
//   step 2    nothing moves: the time of each chunk's passes, and of the step
//   step 3 .. what choose_groups() chose from these and from the rates of the copies, which are
//             measured when this is made
//
// A schedule that changes begins with step 1 again.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/activation_offload.h"
#include "offload/offload_budget.h"

namespace ferry {

class AutoOffload final : public ActivationMover {
 public:
  /// `config` has the candidates; its rules are not used. `budget` is the part of the time of the
  /// passes that offload may add. Measures the copies of `device`, which takes a moment.
  /// `ledger`: see CopyEngine.
  AutoOffload(Device& device, const ActivationOffloadConfig& config, double budget,
              MemoryLedger* ledger = nullptr);
  ~AutoOffload() override;

  void begin_step(std::span<const PassAction> actions, Stream& compute) override;
  TapePolicy& policy(PassId pass) override;
  void end_step(Stream& compute) override;
  TrafficByModule traffic() const override { return offload_.traffic(); }
  bool is_settled() const override { return phase_ == Phase::Chosen; }
  void before_recording() override { offload_.before_recording(); }
  void launched(PassId pass) override { offload_.launched(pass); }
  void part_launched(Stream& compute) override { offload_.part_launched(compute); }
  const ActivationOffload& offload() const { return offload_; }

  struct Rates {
    double d2h_bytes_per_s = 0;
    double h2d_bytes_per_s = 0;
  };
  const Rates& rates() const { return rates_; }
  /// True in a step in which nothing moves, for its time.
  bool times_step() const { return phase_ == Phase::Times; }
  /// Set from the end of step 2 on.
  const std::optional<BudgetChoice>& choice() const { return choice_; }
  /// Of all passes of step 2, and of the last step that followed the choice. 0: none yet.
  double seconds_without() const { return seconds_without_; }
  double seconds_with() const;

 private:
  class TimedPass;
  enum class Phase { Sizes, Times, Chosen };
  struct Span {
    std::shared_ptr<const TimeStamp> begin, end;
    double seconds() const { return end->seconds_since(*begin); }
  };
  void choose();

  ActivationOffload offload_;
  double budget_;
  Rates rates_;
  std::optional<int64_t> max_inflight_;
  Stream* compute_ = nullptr;  // of this step
  std::vector<PassAction> actions_;
  Phase phase_ = Phase::Sizes;
  std::map<PassId, std::unique_ptr<TimedPass>> timed_;
  Span step_;
  bool step_follows_choice_ = false;
  double seconds_without_ = 0;
  std::optional<BudgetChoice> choice_;
};

/// One copy at a time in each direction, of 64 MiB, the best of several.
AutoOffload::Rates measure_copy_rates(Device& device);

/// What was chosen, predicted and achieved, in a line or two. `saved_bytes`: how much lower the
/// peak of saved tensors became.
std::string auto_offload_text(const AutoOffload& offload, int64_t saved_bytes);

}  // namespace ferry
