#include <gtest/gtest.h>

#include <numeric>

#include "layers/recompute.h"
#include "tests/moe/layer_over_ranks.h"
#include "tests/support/saved_bytes.h"

namespace ferry::testing {
namespace {

constexpr int64_t kSharedFfn = 8, kFfn = 10, kTopK = 2;

// What is recomputed: Moe is the whole layer.
using Labels = std::set<Label>;
const std::vector<Labels> kSets = {
    {Label::Moe}, {Label::SharedExperts}, {Label::Moe, Label::SharedExperts}};

struct LayerCase {
  DType dtype = DType::F32;
  std::string dispatcher = "alltoall";
  bool shared_gate = true;
  std::string force_routing = "none";
};

std::unique_ptr<Module> make_layer(const LayerCase& c, const Labels& recomputed,
                                   const TensorParallel& tensor = {},
                                   const ExpertParallel& experts = {}) {
  const ModuleDecorator decorate = [&](Label label,
                                       std::unique_ptr<Module> module) -> std::unique_ptr<Module> {
    if (!recomputed.contains(label)) return module;
    return std::make_unique<Recompute>(std::move(module), label);
  };
  MoeConfig moe;
  moe.experts = kExperts;
  moe.top_k = kTopK;
  moe.ffn = kFfn;
  moe.dispatcher = c.dispatcher;
  moe.shared_ffn = kSharedFfn;
  moe.shared_gate = c.shared_gate;
  moe.router.aux_coeff = {0.4};
  moe.router.z_coeff = 0.2;
  return decorate(Label::Moe, std::make_unique<MoeLayer>(
                                  "layers/0/moe", moe, MlpConfig{kHidden, 0, 0.02, 0.02, c.dtype},
                                  c.force_routing, 1, tensor, experts, decorate));
}

// One micro-batch on this rank, with memory that is NaN until it is written.
Outcome run_layer(const LayerCase& c, const Labels& recomputed, const MoeRank& rank,
                  bool discard = false) {
  const auto device = make_cpu_device();
  device->set_poison_memory(true);
  const auto stream = device->make_stream("rank"), side = device->make_stream("side");
  ExpertParallel experts = rank.experts;
  experts.side = side.get();
  const auto layer = make_layer(c, recomputed, rank.tensor, experts);
  allocate_parameters(*stream, *layer, 1);
  const auto seed = static_cast<uint64_t>(10 * rank.index);
  const Shape own{kTokens / rank.tensor.size, kHidden};
  ModuleRun run;
  run.batch = random_batch(*stream, 4, kTokens / 4, 7, 1);
  DiscardPolicy policy({Label::MoeAct});
  return run_micro_batch(*stream, *layer, random_tensor(*stream, own, c.dtype, 2 + seed),
                         random_tensor(*stream, own, c.dtype, 3 + seed), run,
                         discard ? &policy : nullptr);
}

void expect_same_with_recompute(const LayerCase& c, const MoeLayout& layout) {
  run_ranks(layout.world(), [&](Group& world, Control&) {
    const MoeRank rank(world, layout);
    const Outcome plain = run_layer(c, {}, rank);
    for (const Labels& labels : kSets) {
      for (const bool discard : {false, true}) {
        const ::testing::ScopedTrace trace(
            __FILE__, __LINE__,
            concat(layout, ", ", c.dispatcher, ", ", name_of(c.dtype), ", routing ",
                   c.force_routing, labels.contains(Label::Moe) ? ", moe" : "",
                   labels.contains(Label::SharedExperts) ? ", shared experts" : "",
                   discard ? ", discarding" : ""));
        expect_same(run_layer(c, labels, rank, discard), plain);
      }
    }
  });
}

TEST(MoeRecompute, ChangesNotOneBit) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    for (const char* routing : {"none", "all_to:[2,3]", "skip:[1]"})
      expect_same_with_recompute({.dtype = dtype, .force_routing = routing}, {});
    expect_same_with_recompute({.dtype = dtype, .shared_gate = false}, {});
  }
}

TEST(MoeRecompute, ChangesNotOneBitOnRanks) {
  for (const MoeLayout& layout : {MoeLayout{2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {1, 1, 2}, {2, 2, 2}}) {
    for (const char* dispatcher : {"alltoall", "allgather"}) {
      // With all tokens for two experts there are ranks without rows.
      for (const char* routing : {"none", "all_to:[2,3]"})
        expect_same_with_recompute({.dispatcher = dispatcher, .force_routing = routing}, layout);
    }
  }
}

class MoeRecomputeTest : public CpuTest {};

TEST_F(MoeRecomputeTest, SavesInputsAlone) {
  const auto saved = [&](const Labels& labels, bool training = true) {
    const auto layer = make_layer({}, labels);
    allocate_parameters(stream(), *layer, 1);
    const Tensor x = random_tensor(stream(), {kTokens, kHidden}, DType::F32, 2);
    const Tensor dy = random_tensor(stream(), {kTokens, kHidden}, DType::F32, 3);
    ModuleRun run;
    run.batch = random_batch(stream(), 4, kTokens / 4, 7, 1);
    run.training = training;
    return saved_bytes(stream(), *layer, x, dy, run);
  };
  using Bytes = std::map<std::string, int64_t>;
  const Bytes plain = saved({});
  const int64_t rows = kTokens * 4, input = kHidden * rows;
  // The input belongs to the last one that saves it; then gate, up and activation, y and gate.
  EXPECT_EQ(plain.at("shared_experts"), input + (3 * kSharedFfn + kHidden + 1) * rows);
  Bytes want = plain;
  want["shared_experts"] = input;
  EXPECT_EQ(saved({Label::SharedExperts}), want);
  EXPECT_EQ(saved({Label::Moe}), (Bytes{{"moe", input}}));
  EXPECT_EQ(saved({Label::Moe, Label::SharedExperts}), (Bytes{{"moe", input}}));
  for (const Labels& labels : kSets) EXPECT_EQ(saved(labels, false), Bytes());
}

// Two forwards, and the tokens of experts and the balancing losses once.
TEST_F(MoeRecomputeTest, CountsOnce) {
  class Solo final : public Module {
   public:
    explicit Solo(std::unique_ptr<Module> inner) : inner_(std::move(inner)) {}
    Tensor forward(Pass& pass, const Tensor& x) override { return inner_->forward(pass, x); }
    Tensor backward(Pass& pass, const Tensor& dy) override {
      const auto before = totals_of(pass);
      const Tensor dx = inner_->backward(pass, dy);
      EXPECT_EQ(totals_of(pass), before);
      return dx;
    }
    void visit(const ParameterVisitor& visitor) override { inner_->visit(visitor); }

   private:
    static std::map<std::string, std::vector<double>> totals_of(Pass& pass) {
      std::map<std::string, std::vector<double>> totals;
      for (const auto& [name, total] : pass.totals.all())
        totals[name] = read_back_as_double(pass.stream, total);
      return totals;
    }
    std::unique_ptr<Module> inner_;
  };
  for (const Labels& labels : kSets) {
    Solo layer(make_layer({}, labels));
    allocate_parameters(stream(), layer, 1);
    const Tensor x = random_tensor(stream(), {kTokens, kHidden}, DType::F32, 2);
    ModuleRun run;
    run.batch = random_batch(stream(), 4, kTokens / 4, 7, 1);
    const Outcome outcome = run_micro_batch(stream(), layer, x, x, run);
    const auto& counts = outcome.tensors.at("total expert_tokens/layers/0/moe/router");
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0.0), kTokens * kTopK);
    EXPECT_GT(outcome.tensors.at("total aux_loss").at(0), 0);
    EXPECT_GT(outcome.tensors.at("total z_loss").at(0), 0);
  }
}

}  // namespace
}  // namespace ferry::testing
