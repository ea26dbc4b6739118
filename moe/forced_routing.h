#pragma once

// Forced routing, for tests and benchmarks (debug.force_routing): a bias on the router's logits so
// large that the wanted experts win whatever the router says. The gate, the losses and all
// gradients run as always.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace ferry {

class ForcedRouting {
 public:
  /// mode: "none", "balanced", "uniform_random", "all_to:[0,3]", "skip:[1]", "power_law:1.2".
  /// Error(ExitCode::Usage) says what is wrong with it; all_to needs top_k experts or more.
  ForcedRouting(const std::string& mode, int64_t experts, int64_t top_k, uint64_t seed);

  bool active() const { return kind_ != Kind::None; }
  /// The experts of tokens [first_token, first_token + num_tokens) of a micro-batch,
  /// [num_tokens * top_k]; pure function of the arguments and the seed.
  std::vector<int32_t> choose(int64_t first_token, int64_t num_tokens) const;
  /// [num_tokens, experts] F32 (or F64): 0 for allowed experts, a large negative number otherwise.
  /// Made once for the same tokens.
  Tensor bias(Stream& stream, int64_t first_token, int64_t num_tokens, DType dtype);

 private:
  enum class Kind { None, Balanced, UniformRandom, AllTo, Skip, PowerLaw };
  std::vector<int32_t> choose_by_weight(int64_t first_token, int64_t num_tokens) const;

  Kind kind_ = Kind::None;
  int64_t experts_;
  int64_t top_k_;
  uint64_t seed_;
  std::vector<int64_t> listed_;
  double exponent_ = 0;
  std::map<std::pair<int64_t, int64_t>, Tensor> biases_;  // of first token and number
};

}  // namespace ferry
