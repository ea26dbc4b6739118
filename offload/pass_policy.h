#pragma once

// The tape policy of one pass: what is rebuilt, and who moves the rest.

#include <set>
#include <vector>

#include "core/tape.h"

namespace ferry {

class PassPolicy final : public TapePolicy {
 public:
  /// Discards rebuildable tensors of `discarded`; tells `policies` of everything else, in order.
  PassPolicy(std::set<Label> discarded, std::vector<TapePolicy*> policies)
      : discarded_(std::move(discarded)), policies_(std::move(policies)) {}

  bool discards(Label label) const override { return discarded_.contains(label); }
  void saved(Record& record, Stream& stream) override {
    for (TapePolicy* policy : policies_) policy->saved(record, stream);
  }
  void loading(Record& record, Stream& stream) override {
    for (TapePolicy* policy : policies_) policy->loading(record, stream);
  }
  void forward_done(Stream& stream) override {
    for (TapePolicy* policy : policies_) policy->forward_done(stream);
  }
  void backward_done(Stream& stream) override {
    for (TapePolicy* policy : policies_) policy->backward_done(stream);
  }

 private:
  std::set<Label> discarded_;
  std::vector<TapePolicy*> policies_;
};

}  // namespace ferry
