#include <gtest/gtest.h>

#include <numeric>

#include "app/model/gpt.h"
#include "tests/app/model/small_gpt.h"
#include "tests/support/devices.h"
#include "tests/support/run_ranks.h"
#include "tests/support/saved_bytes.h"

namespace ferry::testing {
namespace {

using Layers = GptRecompute::Layers;
using Bytes = std::map<std::string, int64_t>;

const std::set<Label> kAllModules = {Label::CoreAttn, Label::Mlp, Label::Moe, Label::SharedExperts};

// Of the 3 layers of small(): each module, each method with and without a remainder, and with more
// layers than there are; all of it at once.
const std::vector<GptRecompute> kPlans = {
    {{Label::CoreAttn}},
    {{Label::Mlp}},
    {{Label::Moe}},
    {{Label::SharedExperts}},
    {kAllModules},
    {{}, Layers::Uniform, 1},
    {{}, Layers::Uniform, 2},
    {{}, Layers::Uniform, 7},
    {{}, Layers::Block, 1},
    {{}, Layers::Block, 2},
    {{}, Layers::Block, 7},
    {kAllModules, Layers::Uniform, 2},
    {kAllModules, Layers::Block, 2},
};

std::string spelled(const GptRecompute& plan) {
  std::string text = plan.layers == Layers::None      ? "modules"
                     : plan.layers == Layers::Uniform ? "uniform"
                                                      : "block";
  text += concat(" ", plan.num_layers, plan.distribute ? " distributed" : "");
  for (const Label label : plan.modules) text += concat(" ", name_of(label));
  return text;
}

class GptRecomputeTest : public CpuTest {
 protected:
  Outcome run(const GptConfig& config, const GptRecompute& plan, TapePolicy* policy = nullptr,
              bool training = true) {
    GptModule module(config, "none", plan);
    allocate_parameters(stream(), module, 1, 0.3);
    ModuleRun r = make_run(stream());
    r.training = training;
    return run_micro_batch(stream(), module, {}, {}, r, policy);
  }
  Bytes saved(const GptConfig& config, const GptRecompute& plan, TapePolicy* policy = nullptr,
              bool training = true) {
    GptModule module(config, "none", plan);
    allocate_parameters(stream(), module, 1, 0.3);
    ModuleRun r = make_run(stream());
    r.training = training;
    return saved_bytes(stream(), module, {}, {}, r, policy);
  }
};

TEST_F(GptRecomputeTest, ChangesNotOneBit) {
  for (const char* precision : {"fp64", "fp32", "bf16"}) {
    const GptConfig config = with_everything(precision);
    const Outcome plain = run(config, {});
    for (const GptRecompute& plan : kPlans) {
      SCOPED_TRACE(concat(precision, ", ", spelled(plan)));
      expect_same(run(config, plan), plain);
    }
  }
}

TEST_F(GptRecomputeTest, GoesTogetherWithDiscardedActivations) {
  for (const char* qk_norm : {"none", "head", "full"}) {
    GptConfig config = with_everything("bf16");
    config.model.qk_norm = qk_norm;
    const Outcome plain = run(config, {});
    DiscardPolicy policy({Label::Layernorm, Label::MoeAct});
    for (const GptRecompute& plan : kPlans) {
      SCOPED_TRACE(concat("qk_norm ", qk_norm, ", ", spelled(plan)));
      expect_same(run(config, plan, &policy), plain);
    }
  }
}

// Two forwards, and the tokens of experts and the balancing losses once.
TEST_F(GptRecomputeTest, CountsOnce) {
  const GptConfig config = with_everything("fp32");
  for (const GptRecompute& plan : kPlans) {
    const Outcome outcome = run(config, plan);
    for (const char* layer : {"1", "2"}) {
      const auto& counts =
          outcome.tensors.at(concat("total expert_tokens/layers/", layer, "/moe/router"));
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0.0), 20 * 2) << spelled(plan);
    }
    // Of two layers. It is 1 for each if the experts are evenly loaded, and not much more.
    EXPECT_NEAR(outcome.tensors.at("total aux_loss").at(0), 2, 0.6) << spelled(plan);
  }
}

TEST_F(GptRecomputeTest, SavesInputsAlone) {
  const GptConfig config = with_everything("fp32");
  const Bytes plain = saved(config, {});
  const int64_t input = 20 * 16 * 4, lse = 20 * 4 * 4;
  const auto without = [&](std::initializer_list<const char*> names) {
    Bytes bytes = plain;
    for (const char* name : names) EXPECT_EQ(bytes.erase(name), 1u) << name;
    return bytes;
  };

  Bytes want = plain;
  want["core_attn"] -= 3 * lse;
  EXPECT_EQ(saved(config, {{Label::CoreAttn}}), want);
  want = plain;
  want["mlp"] = input;
  EXPECT_EQ(saved(config, {{Label::Mlp}}), want);
  want = plain;
  want["shared_experts"] = 2 * input;
  EXPECT_EQ(saved(config, {{Label::SharedExperts}}), want);
  want = without({"router", "expert_fc1", "moe_act", "expert_fc2", "shared_experts"});
  want["moe"] = 2 * input;
  EXPECT_EQ(saved(config, {{Label::Moe}}), want);

  // Of the layers nothing but inputs: as many as there are chunks.
  Bytes ends = plain;
  for (const char* name :
       {"attn_norm", "qkv_linear", "qk_norm", "core_attn", "attn_proj", "mlp_norm", "router",
        "expert_fc1", "moe_act", "expert_fc2", "shared_experts", "mlp"})
    ends.erase(name);
  EXPECT_EQ(ends.size(), 2u);  // the final norm and the head
  for (const auto& [num_layers, num_chunks] : {std::pair(1, 3), {2, 2}, {3, 1}, {7, 1}}) {
    want = ends;
    want["layer"] = num_chunks * input;
    EXPECT_EQ(saved(config, {{}, Layers::Uniform, num_layers}), want) << num_layers;
  }
  // The first layer is the dense one.
  want = without({"mlp"});
  want["layer"] = input;
  for (const char* name :
       {"attn_norm", "qkv_linear", "qk_norm", "core_attn", "attn_proj", "mlp_norm"})
    want[name] -= plain.at(name) / 3;
  EXPECT_EQ(saved(config, {{}, Layers::Block, 1}), want);
  EXPECT_EQ(saved(config, {{}, Layers::Block, 3}), saved(config, {{}, Layers::Uniform, 1}));
  EXPECT_EQ(saved(config, {kAllModules, Layers::Uniform, 2}),
            saved(config, {{}, Layers::Uniform, 2}));

  // Inputs that the tape can rebuild are not there at all.
  DiscardPolicy policy({Label::Layernorm});
  want = saved(config, {}, &policy);
  for (const char* name :
       {"mlp", "router", "expert_fc1", "moe_act", "expert_fc2", "shared_experts", "core_attn"})
    want.erase(name);
  EXPECT_EQ(saved(config, {kAllModules}, &policy), want);
}

TEST_F(GptRecomputeTest, EvaluationSavesNothing) {
  const GptConfig config = with_everything("fp32");
  const Outcome plain = run(config, {}, nullptr, false);
  for (const GptRecompute& plan : kPlans) {
    EXPECT_EQ(saved(config, plan, nullptr, false), Bytes()) << spelled(plan);
    const Outcome outcome = run(config, plan, nullptr, false);
    expect_same(outcome, plain);
    EXPECT_EQ(outcome.num_records, 0u) << spelled(plan);
  }
}

TEST_F(GptRecomputeTest, HooksSeeEveryBlockOnceInEachDirection) {
  for (const GptRecompute& plan : kPlans) {
    GptModule module(with_everything("fp32"), "none", plan);
    allocate_parameters(stream(), module, 1);
    run_micro_batch(stream(), module, {}, {}, make_run(stream()));
    EXPECT_EQ(module.hooks.calls, " f0 f1 f2 f3 f4 b4 b3 b2 b1 b0") << spelled(plan);
  }
}

// A hook may reduce the gradients of its block: they must be final by then.
TEST_F(GptRecomputeTest, GradientsOfABlockAreFinalAfterItsHook) {
  class ReadingHooks final : public BlockHooks {
   public:
    explicit ReadingHooks(Gpt& gpt) : blocks(gpt.parameters_by_block()) {}
    void after_backward(Pass& pass, int block_idx) override {
      for (const Parameter* p : blocks.at(static_cast<size_t>(block_idx)))
        gradients[p->name] = read_back_as_double(pass.stream, p->grad);
    }
    std::vector<std::vector<Parameter*>> blocks;
    std::map<std::string, std::vector<double>> gradients;
  };
  GptModule module(with_everything("fp32"), "none", {kAllModules, Layers::Uniform, 2});
  allocate_parameters(stream(), module, 1);
  ReadingHooks hooks(module.gpt);
  const ModuleRun r = make_run(stream());
  Tape tape;
  StepTotals totals;
  Pass pass(stream(), tape, r.batch, totals, r.key, true);
  module.gpt.forward(pass, hooks);
  module.gpt.backward(pass, hooks);
  module.visit([&](Parameter& p) {
    EXPECT_EQ(hooks.gradients.at(p.name), read_back_as_double(stream(), p.grad)) << p.name;
  });
}

// A stage of a pipeline: x in, y out.
class Stage final : public Module {
 public:
  Stage(const GptConfig& config, const ModelPart& part, const GptRecompute& plan)
      : gpt(config, "none", 1, {}, part, plan) {
    gpt.number_blocks_from(3);
  }
  Tensor forward(Pass& pass, const Tensor& x) override { return gpt.forward(pass, x, hooks); }
  Tensor backward(Pass& pass, const Tensor& dy) override { return gpt.backward(pass, dy, hooks); }
  void visit(const ParameterVisitor& visitor) override { gpt.visit(visitor); }

  Gpt gpt;
  NotingHooks hooks;
};

TEST_F(GptRecomputeTest, LayersAreCountedInEachStage) {
  const GptConfig config = with_everything("fp32");
  const int64_t input = 20 * 16 * 4;
  for (const GptRecompute& plan : kPlans) {
    SCOPED_TRACE(spelled(plan));
    const auto outcome = [&](const GptRecompute& of) {
      Stage stage(config, {false, 1, 2, false}, of);
      allocate_parameters(stream(), stage, 1, 0.3);
      const Tensor x = random_tensor(stream(), {20, 16}, DType::F32, 2);
      const Tensor dy = random_tensor(stream(), {20, 16}, DType::F32, 3);
      const Bytes bytes = saved_bytes(stream(), stage, x, dy, make_run(stream()));
      EXPECT_EQ(stage.hooks.calls, " f3 f4 b4 b3");
      const int64_t num_layers =
          of.layers == Layers::None ? 0 : std::min<int64_t>(of.num_layers, 2);
      const int64_t chunks = of.layers == Layers::Uniform ? 3 - num_layers : num_layers;
      EXPECT_EQ(bytes.contains("layer") ? bytes.at("layer") : 0, chunks * input);
      return run_micro_batch(stream(), stage, x, dy, make_run(stream()));
    };
    expect_same(outcome(plan), outcome({}));
  }
  // A stage without layers.
  for (const auto layers : {Layers::Uniform, Layers::Block}) {
    Stage stage(config, {false, 1, 0, false}, {{}, layers, 1});
    const Tensor x = random_tensor(stream(), {20, 16}, DType::F32, 2);
    EXPECT_EQ(run_micro_batch(stream(), stage, x, x, make_run(stream())).num_records, 0u);
  }
}

TEST_F(GptRecomputeTest, RefusesAMethodWithoutLayers) {
  try {
    GptModule module(with_everything("fp32"), "none", {{}, Layers::Uniform, 0});
    FAIL() << "chunks of no layers";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("recompute of 0 layers"), std::string::npos)
        << error.what();
  }
}

struct Layout {
  int tp = 1;
  bool sequence = false;
  int ep = 1;
  std::string dispatcher = "alltoall";
};

// What each of two ranks gets, with all of them in one group per axis that has more than one.
std::vector<Outcome> run_on_ranks(const std::string& precision, const Layout& layout,
                                  const GptRecompute& plan, bool discard) {
  GptConfig config = with_everything(precision);
  config.model.qk_norm = "full";
  config.moe.shared_ffn = 6;
  config.moe.dispatcher = layout.dispatcher;
  std::vector<Outcome> outcomes(2);
  run_ranks(2, [&](Group& world, Control&) {
    const int rank = world.rank();
    const auto device = make_cpu_device();
    device->set_poison_memory(true);
    const auto stream = device->make_stream("rank"), side = device->make_stream("side");
    const auto tensor_group = world.split(0, "tp"), exchange_group = world.split(0, "ep");
    ModelAxes axes;
    if (layout.tp == 2) axes.tensor = {tensor_group.get(), rank, 2, layout.sequence};
    if (layout.ep == 2) axes.expert = {exchange_group.get(), rank, 2, 0, 1, side.get()};
    GptModule module(config, "none", plan, axes);
    allocate_parameters(*stream, module, 1, 0.3);
    // Ranks that do not share a micro-batch have two.
    const int64_t begin = layout.tp == 2 ? 0 : 2 * rank;
    const ModuleRun r = make_run(*stream, begin, layout.tp == 2 ? 4 : begin + 2);
    DiscardPolicy policy({Label::Layernorm, Label::MoeAct});
    outcomes[static_cast<size_t>(rank)] =
        run_micro_batch(*stream, module, {}, {}, r, discard ? &policy : nullptr);
  });
  return outcomes;
}

TEST_F(GptRecomputeTest, ChangesNotOneBitOnRanks) {
  std::vector<Layout> layouts;
  for (const bool sequence : {false, true}) {
    layouts.push_back({.tp = 2, .sequence = sequence});
    for (const char* dispatcher : {"alltoall", "allgather"})
      layouts.push_back({2, sequence, 2, dispatcher});
  }
  for (const char* dispatcher : {"alltoall", "allgather"})
    layouts.push_back({.ep = 2, .dispatcher = dispatcher});
  for (const Layout& layout : layouts) {
    const auto plain = run_on_ranks("fp32", layout, {}, false);
    std::vector<GptRecompute> plans = kPlans;
    if (layout.tp == 2 && !layout.sequence) {
      plans.push_back({{}, Layers::Uniform, 2, true});
      plans.push_back({kAllModules, Layers::Block, 2, true});
    }
    for (const GptRecompute& plan : plans) {
      for (const bool discard : {false, true}) {
        SCOPED_TRACE(concat("tp ", layout.tp, layout.sequence ? " sequence" : "", ", ep ",
                            layout.ep, " ", layout.dispatcher, ", ", spelled(plan),
                            discard ? ", discarding" : ""));
        const auto outcomes = run_on_ranks("fp32", layout, plan, discard);
        for (size_t rank = 0; rank < 2; ++rank) expect_same(outcomes[rank], plain[rank]);
      }
    }
  }
}

// In memory, not only by the count of the tape: what is saved is no view of all rows.
TEST_F(GptRecomputeTest, RanksShareTheMemoryOfInputs) {
  const Layout layout{.tp = 2};
  const auto whole = run_on_ranks("fp32", layout, {{}, Layers::Uniform, 1}, false);
  const auto shared = run_on_ranks("fp32", layout, {{}, Layers::Uniform, 1, true}, false);
  for (size_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(whole[rank].saved_bytes - shared[rank].saved_bytes, 3 * 20 * 16 * 4 / 2);
}

}  // namespace
}  // namespace ferry::testing
