#pragma once

// A MoE layer on several ranks (threads) against the same layer on one rank.
//
// Ranks are numbered with tp fastest, and with etp fastest, then ep. Each tensor-parallel group has
// a micro-batch of kTokens tokens, of which each of its ranks has an equal piece.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "moe/moe_layer.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"
#include "tests/support/placed_values.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {

struct MoeLayout {
  int tp = 1;
  int ep = 1;
  int etp = 1;
  int world() const { return std::max(tp, ep * etp); }
};
inline std::ostream& operator<<(std::ostream& out, const MoeLayout& layout) {
  return out << "tp " << layout.tp << ", ep " << layout.ep << ", etp " << layout.etp;
}

/// The groups of one rank.
struct MoeRank {
  MoeRank(Group& world, const MoeLayout& layout) : index(world.rank()), micro(index / layout.tp) {
    tensor_group_ = world.split(micro, "tp");
    tensor = {tensor_group_.get(), index % layout.tp, layout.tp, false};
    const int size = layout.ep * layout.etp;
    exchange_group_ = world.split(index / size, "exchange");
    const int rank = index % size;
    experts = {exchange_group_.get(), rank / layout.etp, layout.ep, rank % layout.etp, layout.etp};
  }
  int index;
  int micro;  // which micro-batch
  TensorParallel tensor;
  ExpertParallel experts;

 private:
  std::unique_ptr<Group> tensor_group_, exchange_group_;
};

struct MoeCase {
  std::string dispatcher = "alltoall";
  int64_t top_k = 2;
  bool pre_softmax = true;
  int64_t shared_ffn = 0;
  bool shared_gate = false;
  std::string force_routing = "none";
  bool side_stream = true;
  bool recompute = false;  // forward runs twice, as under recomputation
  DType dtype = DType::F64;
};
inline std::ostream& operator<<(std::ostream& out, const MoeCase& c) {
  return out << c.dispatcher << " of " << name_of(c.dtype) << ", top " << c.top_k
             << (c.pre_softmax ? " pre" : " post") << "-softmax, shared " << c.shared_ffn
             << (c.shared_gate ? " gated" : "") << ", routing " << c.force_routing
             << (c.side_stream ? "" : ", no side stream") << (c.recompute ? ", recomputed" : "");
}

inline constexpr int64_t kExperts = 8, kHidden = 6, kTokens = 20;

inline std::unique_ptr<MoeLayer> make_moe_layer(const MoeCase& c, const TensorParallel& tensor = {},
                                                const ExpertParallel& experts = {}) {
  MoeConfig moe;
  moe.experts = kExperts;
  moe.top_k = c.top_k;
  moe.ffn = 10;
  moe.dispatcher = c.dispatcher;
  moe.shared_ffn = c.shared_ffn;
  moe.shared_gate = c.shared_gate;
  moe.router.pre_softmax = c.pre_softmax;
  moe.router.aux_coeff = {0.4};
  moe.router.z_coeff = 0.2;
  return std::make_unique<MoeLayer>("layers/0/moe", moe, MlpConfig{kHidden, 0, 0.02, 0.02, c.dtype},
                                    c.force_routing, 1, tensor, experts);
}

/// Forward once on a tape that is dropped, then as ever: what recomputation does.
class ForwardTwice final : public Module {
 public:
  explicit ForwardTwice(Module& inner) : inner_(inner) {}
  Tensor forward(Pass& pass, const Tensor& x) override {
    Tape dropped;
    const Tensor first = pass.with_tape(dropped, [&] { return inner_.forward(pass, x); });
    const Tensor y = inner_.forward(pass, x);
    expect_same_bits(pass.stream, y, first);
    return y;
  }
  Tensor backward(Pass& pass, const Tensor& dy) override { return inner_.backward(pass, dy); }
  void visit(const ParameterVisitor& visitor) override { inner_.visit(visitor); }

 private:
  Module& inner_;
};

/// One micro-batch of a layer whose parameters have memory; its rows are cut for `tensor`.
inline Outcome run_moe_layer(Stream& stream, MoeLayer& layer, const MoeCase& c, int micro,
                             const TensorParallel& tensor = {}) {
  const auto own = [&](uint64_t seed) {
    const auto whole = random_tensor(stream, {kTokens, kHidden}, c.dtype,
                                     seed + 10 * static_cast<uint64_t>(micro));
    const int64_t rows = kTokens / tensor.size;
    return whole.rows(tensor.rank * rows, (tensor.rank + 1) * rows);
  };
  ModuleRun run;
  run.batch = random_batch(stream, 4, kTokens / 4, 7, 1);
  ForwardTwice twice(layer);
  Module& module = c.recompute ? static_cast<Module&>(twice) : layer;
  return run_micro_batch(stream, module, own(2), own(3), run);
}

using WholeValues = std::map<std::string, std::vector<double>>;

/// What one rank gives for all micro-batches: y and dx of one after the other, sums of the rest.
inline Outcome run_on_one_rank(const MoeCase& c, int num_micro, WholeValues& values) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("one rank");
  const auto layer = make_moe_layer(c);
  allocate_parameters(*stream, *layer, 1);
  layer->visit([&](Parameter& p) { values[p.name] = read_back_as_double(*stream, p.value); });
  Outcome sum;
  for (int micro = 0; micro < num_micro; ++micro) {
    for (const auto& [name, own] : run_moe_layer(*stream, *layer, c, micro).tensors) {
      std::vector<double>& all = sum.tensors[name];
      if (name == "y" || name == "dx") {
        all.insert(all.end(), own.begin(), own.end());
      } else {
        add_part(all, own, Placement({static_cast<int64_t>(own.size())}));
      }
    }
  }
  return sum;
}

struct RankResult {
  Outcome outcome;
  std::map<std::string, Parameter> parameters;  // without tensors
};

inline RankResult run_on_rank(Device& device, const MoeCase& c, const MoeRank& rank,
                              const WholeValues& values) {
  device.set_poison_memory(true);
  const auto stream = device.make_stream("rank"), side = device.make_stream("side");
  ExpertParallel experts = rank.experts;
  if (c.side_stream) experts.side = side.get();
  const auto layer = make_moe_layer(c, rank.tensor, experts);
  RankResult result;
  layer->visit([&](Parameter& p) {
    result.parameters[p.name] = p;
    p.value = tensor_of(*stream, part_of(values.at(p.name), p.placement()), p.shape, p.dtype);
    p.grad = zeros(*stream, p.shape, accumulate_dtype(p.dtype));
  });
  result.outcome = run_moe_layer(*stream, *layer, c, rank.micro, rank.tensor);
  return result;
}

/// As pipeline and optimizer would: rows one after the other, gradients and totals summed.
inline Outcome put_together(const std::vector<RankResult>& ranks) {
  Outcome whole;
  for (const RankResult& rank : ranks) {
    for (const auto& [name, own] : rank.outcome.tensors) {
      std::vector<double>& all = whole.tensors[name];
      if (name == "y" || name == "dx") {
        all.insert(all.end(), own.begin(), own.end());
      } else if (name.starts_with("d(")) {
        const Parameter& p = rank.parameters.at(name.substr(2, name.size() - 3));
        EXPECT_FALSE(p.is_copy) << name;
        add_part(all, own, p.placement());
      } else {
        add_part(all, own, Placement({static_cast<int64_t>(own.size())}));
      }
    }
  }
  return whole;
}

inline std::vector<RankResult> run_over_ranks(const MoeCase& c, const MoeLayout& layout,
                                              const WholeValues& values) {
  std::vector<RankResult> ranks(static_cast<size_t>(layout.world()));
  run_ranks(layout.world(), [&](Group& world, Control&) {
    const auto device = make_cpu_device();
    const MoeRank rank(world, layout);
    ranks[static_cast<size_t>(rank.index)] = run_on_rank(*device, c, rank, values);
  });
  return ranks;
}

/// Everything within a relative error of `tolerance`, in the 2-norm of each tensor.
inline void expect_same_over_ranks(const MoeCase& c, const MoeLayout& layout, double tolerance,
                                   std::source_location where = std::source_location::current()) {
  const ::testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()),
                                     concat(layout, "; ", c));
  WholeValues values;
  const Outcome one = run_on_one_rank(c, layout.world() / layout.tp, values);
  expect_near(put_together(run_over_ranks(c, layout, values)), one, tolerance, where);
}

}  // namespace ferry::testing
