#include "moe/forced_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "core/host_copy.h"
#include "core/rng.h"

namespace ferry {
namespace {

// Beats any logit, and its exponential is exactly zero.
constexpr double kForbidden = -1e5;
constexpr uint32_t kSite = 0x666f7263;

// Whether nothing but white space is left.
bool at_end(std::istringstream& in) { return (in >> std::ws).eof(); }

std::vector<int64_t> parse_list(const std::string& mode, const std::string& text, int64_t experts) {
  std::vector<int64_t> listed;
  std::istringstream in(text);
  char bracket = 0, comma = ',';
  bool good = static_cast<bool>(in >> bracket) && bracket == '[';
  while (good && comma == ',') {
    int64_t expert = -1;
    good = static_cast<bool>(in >> expert >> comma) && expert >= 0 && expert < experts &&
           std::find(listed.begin(), listed.end(), expert) == listed.end();
    listed.push_back(expert);
  }
  if (!good || comma != ']' || !at_end(in))
    fail(ExitCode::Usage, "debug.force_routing = \"", mode,
         "\": after the colon a list of different experts in [0, ", experts,
         ") is needed, e.g. all_to:[0,1]");
  return listed;
}

}  // namespace

ForcedRouting::ForcedRouting(const std::string& mode, int64_t experts, int64_t top_k, uint64_t seed)
    : experts_(experts), top_k_(top_k), seed_(seed) {
  const size_t colon = mode.find(':');
  const std::string kind = mode.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : mode.substr(colon + 1);
  const bool takes_value = kind == "all_to" || kind == "skip" || kind == "power_law";
  if (!takes_value && colon != std::string::npos)
    fail(ExitCode::Usage, "debug.force_routing = \"", mode, "\": \"", kind,
         "\" takes nothing after a colon");
  if (kind == "none" || kind.empty()) return;
  if (kind == "balanced") {
    kind_ = Kind::Balanced;
  } else if (kind == "uniform_random") {
    kind_ = Kind::UniformRandom;
  } else if (kind == "all_to") {
    kind_ = Kind::AllTo;
    listed_ = parse_list(mode, rest, experts);
    if (static_cast<int64_t>(listed_.size()) < top_k)
      fail(ExitCode::Usage, "debug.force_routing = \"", mode, "\" lists ", listed_.size(),
           " experts, but every token needs moe.top_k = ", top_k);
  } else if (kind == "skip") {
    kind_ = Kind::Skip;
    listed_ = parse_list(mode, rest, experts);
    if (experts - static_cast<int64_t>(listed_.size()) < top_k)
      fail(ExitCode::Usage, "debug.force_routing = \"", mode, "\" leaves ",
           experts - static_cast<int64_t>(listed_.size()),
           " experts, but every token needs moe.top_k = ", top_k);
  } else if (kind == "power_law") {
    kind_ = Kind::PowerLaw;
    std::istringstream in(rest);
    if (!(in >> exponent_) || exponent_ < 0 || !at_end(in))
      fail(ExitCode::Usage, "debug.force_routing = \"", mode,
           "\": an exponent >= 0 is needed, e.g. power_law:1.2");
  } else {
    fail(ExitCode::Usage, "debug.force_routing = \"", mode,
         "\" is not one of none, balanced, uniform_random, all_to:[..], skip:[..], power_law:a");
  }
}

std::vector<int32_t> ForcedRouting::choose(int64_t first_token, int64_t num_tokens) const {
  std::vector<int32_t> chosen;
  chosen.reserve(static_cast<size_t>(num_tokens * top_k_));
  if (kind_ == Kind::Balanced) {
    const int64_t end = (first_token + num_tokens) * top_k_;
    for (int64_t slot = first_token * top_k_; slot < end; ++slot)
      chosen.push_back(static_cast<int32_t>(slot % experts_));
    return chosen;
  }
  return choose_by_weight(first_token, num_tokens);
}

// Without replacement, expert e with weight w[e]: the top_k largest of log(u)/w (Efraimidis and
// Spirakis, 2006).
std::vector<int32_t> ForcedRouting::choose_by_weight(int64_t first_token,
                                                     int64_t num_tokens) const {
  std::vector<double> weight(static_cast<size_t>(experts_), 1.0);
  if (kind_ == Kind::PowerLaw)
    for (int64_t e = 0; e < experts_; ++e)
      weight[static_cast<size_t>(e)] = std::pow(static_cast<double>(e + 1), -exponent_);
  std::vector<int32_t> chosen, order(static_cast<size_t>(experts_));
  std::vector<double> score(static_cast<size_t>(experts_));
  for (int64_t token = first_token; token < first_token + num_tokens; ++token) {
    for (int64_t e = 0; e < experts_; ++e) {
      const auto index = static_cast<uint64_t>(token * experts_ + e);
      const double u = uniform_at({seed_, 0, kSite}, index) + 0x1p-25;
      score[static_cast<size_t>(e)] = std::log(u) / weight[static_cast<size_t>(e)];
    }
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + top_k_, order.end(), [&](int a, int b) {
      return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
    });
    chosen.insert(chosen.end(), order.begin(), order.begin() + top_k_);
  }
  return chosen;
}

Tensor ForcedRouting::bias(Stream& stream, int64_t first_token, int64_t num_tokens, DType dtype) {
  const auto found = biases_.find({first_token, num_tokens});
  if (found != biases_.end()) return found->second;
  const bool listed = kind_ == Kind::AllTo || kind_ == Kind::Skip;
  std::vector<double> rows(static_cast<size_t>(num_tokens * experts_),
                           kind_ == Kind::Skip ? 0.0 : kForbidden);
  const auto at = [&](int64_t token, int64_t expert) -> double& {
    return rows[static_cast<size_t>(token * experts_ + expert)];
  };
  const std::vector<int32_t> chosen =
      listed ? std::vector<int32_t>() : choose(first_token, num_tokens);
  for (int64_t token = 0; token < num_tokens; ++token) {
    for (const int64_t expert : listed_) at(token, expert) = kind_ == Kind::Skip ? kForbidden : 0.0;
    for (int64_t j = 0; j < top_k_ && !listed; ++j)
      at(token, chosen[static_cast<size_t>(token * top_k_ + j)]) = 0.0;
  }
  Tensor bias;
  const Shape shape{num_tokens, experts_};
  if (dtype == DType::F64) {
    bias = from_host(stream, "forced routing", rows, shape);
  } else {
    bias = from_host(stream, "forced routing", std::vector<float>(rows.begin(), rows.end()), shape);
  }
  return biases_.emplace(std::pair(first_token, num_tokens), bias).first->second;
}

}  // namespace ferry
