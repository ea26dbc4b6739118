// Rules between the keys of [moe] and [moe.router], and debug.force_routing.

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "app/nearest.h"
#include "app/validate.h"
#include "core/check.h"
#include "moe/forced_routing.h"

namespace ferry {

namespace {

void validate_layer_freq(const RunConfig& config, Violations& violations) {
  const std::vector<int64_t>& freq = config.moe.layer_freq;
  const int64_t layers = config.model.layers;
  const auto length = static_cast<int64_t>(freq.size());
  if (length == 1 && (freq[0] > 0 || layers == 1)) return;
  if (length == 1) {
    violations.add({"moe.layer_freq"}, "moe.layer_freq is 0", "one number n means every n-th layer",
                   "1 for a MoE layer everywhere; moe.experts = 0 for a dense model");
  } else if (length != layers && layers > 0) {
    violations.add(
        {"moe.layer_freq", "model.layers"}, "moe.layer_freq has the wrong length",
        fmt::format("the list has {} elements for {} layers", length, layers),
        fmt::format("a list of {} zeros and ones, or one number n for every n-th layer", layers));
  } else if (std::any_of(freq.begin(), freq.end(), [](int64_t value) { return value > 1; })) {
    violations.add({"moe.layer_freq"}, "moe.layer_freq has an element that is neither 0 nor 1",
                   "each element says whether that layer has experts", "0 or 1 for each layer");
  }
}

void validate_balance(const RouterConfig& router, Violations& violations) {
  const std::set<std::string> names(router.balance.begin(), router.balance.end());
  if (router.balance.size() != router.aux_coeff.size()) {
    violations.add({"moe.router.aux_coeff", "moe.router.balance"},
                   "moe.router.aux_coeff and moe.router.balance have different lengths",
                   fmt::format("{} losses and {} coefficients", router.balance.size(),
                               router.aux_coeff.size()),
                   fmt::format("{} coefficients", router.balance.size()));
  }
  if (names.size() != router.balance.size() || (names.size() > 1 && names.count("none") > 0)) {
    violations.add({"moe.router.balance"}, "moe.router.balance contradicts itself",
                   "each loss counts once, and none stands alone", "each name once");
  }
}

void validate_groups(const MoeConfig& moe, Violations& violations) {
  const RouterConfig& router = moe.router;
  if ((router.groups > 0) != (router.group_topk > 0)) {
    violations.add({"moe.router.groups", "moe.router.group_topk"},
                   "group-limited routing needs both moe.router.groups and moe.router.group_topk",
                   "a token picks group_topk of the groups first", "set both, or neither");
  } else if (router.groups > 0 && moe.experts % router.groups != 0) {
    violations.add({"moe.router.groups", "moe.experts"},
                   "moe.router.groups does not divide moe.experts",
                   fmt::format("{} experts mod {} = {}", moe.experts, router.groups,
                               moe.experts % router.groups),
                   "moe.router.groups = " + nearest_divisors(moe.experts, router.groups));
  } else if (router.group_topk > router.groups) {
    violations.add({"moe.router.group_topk", "moe.router.groups"},
                   "moe.router.group_topk is above moe.router.groups",
                   fmt::format("{} of {} groups", router.group_topk, router.groups),
                   fmt::format("at most {}", router.groups));
  } else if (router.groups > 0 && moe.experts / router.groups * router.group_topk < moe.top_k) {
    violations.add({"moe.top_k", "moe.router.groups", "moe.router.group_topk", "moe.experts"},
                   "the groups of a token have fewer experts than it uses",
                   fmt::format("{} groups of {} experts, top-{}", router.group_topk,
                               moe.experts / router.groups, moe.top_k),
                   "a larger moe.router.group_topk");
  }
}

void validate_force_routing(const RunConfig& config, Violations& violations) {
  const std::string& mode = config.debug.force_routing;
  try {
    if (config.moe.experts > 0) ForcedRouting(mode, config.moe.experts, config.moe.top_k, 0);
  } catch (const Error& error) {
    violations.add({"debug.force_routing", "moe.experts", "moe.top_k"},
                   "debug.force_routing cannot be used", error.what(),
                   "none, balanced, uniform_random, all_to:[0,1], skip:[0] or power_law:1.5");
  }
}

}  // namespace

void validate_moe(const RunConfig& config, Violations& violations) {
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0) {
    for (const char* key : {"moe.ffn", "moe.shared_ffn"}) {
      if (value_text(config, key) == "0") continue;
      violations.add({key, "moe.experts"}, std::string(key) + " without experts",
                     "a dense model has no MoE layer, so the width would be ignored",
                     "set moe.experts, or remove " + std::string(key));
    }
    return;
  }
  if (moe.top_k > moe.experts) {
    violations.add({"moe.top_k", "moe.experts"}, "moe.top_k is above moe.experts",
                   fmt::format("a token cannot use {} of {} experts", moe.top_k, moe.experts),
                   fmt::format("at most {}", moe.experts));
  }
  if (moe.top_k == 1 && moe.router.score == "softmax" && !moe.router.pre_softmax) {
    violations.add({"moe.top_k", "moe.router.pre_softmax"}, "top-1 with a softmax after the choice",
                   "the softmax over one value is 1, so the router would get no gradient",
                   "moe.router.pre_softmax = true");
  }
  if (moe.router.bias_rate > 0 && moe.router.score == "softmax") {
    violations.add({"moe.router.bias_rate", "moe.router.score"},
                   "a routing bias with softmax scores",
                   "the bias is made for scores that do not depend on each other",
                   "moe.router.score = sigmoid, or moe.router.bias_rate = 0");
  }
  if (moe.pad_to_capacity && !moe.capacity_factor) {
    violations.add(
        {"moe.pad_to_capacity", "moe.capacity_factor"}, "padding to a capacity that is not set",
        "without a capacity factor an expert takes all of its tokens", "set moe.capacity_factor");
  }
  if (moe.shared_ffn == 0 && (moe.shared_gate || moe.shared_overlap)) {
    violations.add({moe.shared_gate ? "moe.shared_gate" : "moe.shared_overlap", "moe.shared_ffn"},
                   "an option of the shared expert without a shared expert", "moe.shared_ffn is 0",
                   "set moe.shared_ffn");
  }
  if (moe.shared_overlap && moe.dispatcher == "allgather") {
    violations.add({"moe.shared_overlap", "moe.dispatcher"},
                   "shared-expert overlap with the all-gather dispatcher",
                   "the overlap hides behind the two all-to-alls", "moe.dispatcher = alltoall");
  }
  validate_force_routing(config, violations);
  validate_layer_freq(config, violations);
  validate_balance(moe.router, violations);
  validate_groups(moe, violations);
}

}  // namespace ferry
