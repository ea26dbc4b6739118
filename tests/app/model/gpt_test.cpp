#include "app/model/gpt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "tests/app/model/small_gpt.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

class GptTest : public CpuTest {
 protected:
  Outcome run(const GptConfig& config, const ModuleRun& module_run, TapePolicy* policy = nullptr) {
    GptModule module(config);
    allocate_parameters(stream(), module, 1, 0.3);
    return run_micro_batch(stream(), module, {}, {}, module_run, policy);
  }
  void expect_gradients_of(const GptConfig& config, const std::string& force_routing = "none") {
    GptModule module(config, force_routing);
    allocate_parameters(stream(), module, 1, 0.4);
    ModuleRun check = make_run(stream());
    check.added_loss = [&](StepTotals& totals) {
      const RouterConfig& router = config.moe.router;
      double sum = 0;
      for (const auto& [name, coeff] :
           {std::pair("aux_loss", router.aux_coeff[0]), {"z_loss", router.z_coeff}})
        if (coeff > 0) sum += coeff * read_back_as_double(stream(), totals.all().at(name)).at(0);
      return sum * static_cast<double>(check.batch.num_loss_tokens);
    };
    expect_loss_gradients(stream(), module, {}, check);
  }
};

TEST_F(GptTest, GradientsMatchDifferenceQuotients) { expect_gradients_of(small("fp64")); }

TEST_F(GptTest, GradientsWithAllOptionsMatchDifferenceQuotients) {
  for (const bool tied : {true, false}) {
    for (const char* qk_norm : {"none", "head", "full"}) {
      SCOPED_TRACE(concat(tied ? "tied" : "untied", ", qk_norm ", qk_norm));
      GptConfig config = small("fp64");
      set_losses(config, 0.3, 0.1);
      set_dropout(config, 0.2);
      config.model.tie_embeddings = tied;
      config.model.qk_norm = qk_norm;
      config.moe.router.pre_softmax = !tied;
      expect_gradients_of(config);
    }
  }
}

TEST_F(GptTest, GradientsOfUnevenRoutingMatchDifferenceQuotients) {
  GptConfig config = small("fp64");
  set_losses(config, 0.3, 0.1);
  expect_gradients_of(config, "all_to:[1,2]");
}

TEST_F(GptTest, GradientsOfADenseModelMatchDifferenceQuotients) {
  GptConfig config = small("fp64");
  config.moe = {};
  expect_gradients_of(config);
}

TEST_F(GptTest, ParametersByBlock) {
  GptConfig config = small("bf16");
  config.model.layers = 2;
  config.model.tie_embeddings = false;
  config.moe.layer_freq = {0, 1};
  Gpt gpt(config, "none", 1);
  std::vector<std::vector<std::string>> names;
  for (const auto& block : gpt.parameters_by_block()) {
    names.emplace_back();
    for (const Parameter* p : block)
      names.back().push_back(concat(p->name, p->decay ? "" : " no decay",
                                    p->axis == ReduceAxis::Expert ? " expert" : "",
                                    p->dtype == DType::F32 ? " f32" : ""));
  }
  using Names = std::vector<std::string>;
  EXPECT_EQ(gpt.num_blocks(), 4);
  ASSERT_EQ(names.size(), 4u);
  EXPECT_EQ(names[0], (Names{"embedding/weight"}));
  EXPECT_EQ(names[1], (Names{"layers/0/attn_norm/weight no decay", "layers/0/attention/qkv/weight",
                             "layers/0/attention/q_norm/weight no decay",
                             "layers/0/attention/k_norm/weight no decay",
                             "layers/0/attention/proj/weight", "layers/0/mlp_norm/weight no decay",
                             "layers/0/mlp/fc1/weight", "layers/0/mlp/fc2/weight"}));
  EXPECT_EQ(
      names[2],
      (Names{"layers/1/attn_norm/weight no decay", "layers/1/attention/qkv/weight",
             "layers/1/attention/q_norm/weight no decay",
             "layers/1/attention/k_norm/weight no decay", "layers/1/attention/proj/weight",
             "layers/1/mlp_norm/weight no decay", "layers/1/moe/shared_experts/fc1/weight",
             "layers/1/moe/shared_experts/fc2/weight", "layers/1/moe/shared_experts/gate/weight",
             "layers/1/moe/router/weight f32", "layers/1/moe/experts/fc1/weight expert",
             "layers/1/moe/experts/fc2/weight expert"}));
  EXPECT_EQ(names[3], (Names{"final_norm/weight no decay", "lm_head/weight"}));
  ASSERT_EQ(gpt.expert_counts().size(), 1u);
  EXPECT_EQ(gpt.expert_counts()[0].moe_layer, 0);
  EXPECT_EQ(gpt.expert_counts()[0].total, "expert_tokens/layers/1/moe/router");

  config.model.tie_embeddings = true;
  Gpt tied(config, "none", 1);
  EXPECT_EQ(tied.parameters_by_block().back().size(), 1u);
}

TEST_F(GptTest, HooksSeeEveryBlockOnceInEachDirection) {
  GptModule module(small("fp32"));
  allocate_parameters(stream(), module, 1);
  run_micro_batch(stream(), module, {}, {}, make_run(stream()));
  EXPECT_EQ(module.hooks.calls, " f0 f1 f2 f3 f4 b4 b3 b2 b1 b0");
}

// A hook may reduce the gradients of its block: they must be final by then.
TEST_F(GptTest, GradientsOfABlockAreFinalAfterItsHook) {
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
  for (const bool tied : {true, false}) {
    GptConfig config = small("fp32");
    config.model.tie_embeddings = tied;
    GptModule module(config);
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
}

TEST_F(GptTest, StartsAtTheEntropyOfAUniformGuess) {
  for (const bool tied : {true, false}) {
    GptConfig config = small("fp32");
    config.model.tie_embeddings = tied;
    GptModule module(config);
    module.gpt.initialise(stream(), 5);
    module.visit([&](Parameter& p) { p.grad = zeros(stream(), p.shape, DType::F32); });
    const Outcome outcome = run_micro_batch(stream(), module, {}, {}, make_run(stream()));
    EXPECT_NEAR(outcome.tensors.at("total loss")[0] / 16, std::log(kVocab), 0.1);
  }
}

TEST_F(GptTest, OutputLinearsStartSmaller) {
  Gpt gpt(small("fp32"), "none", 1);
  gpt.visit([](Parameter& p) {
    const bool output = p.name.ends_with("proj/weight") || p.name.ends_with("fc2/weight");
    const double want = !p.decay ? 0 : output ? 0.02 / std::sqrt(6.0) : 0.02;
    EXPECT_DOUBLE_EQ(p.init.std, want) << p.name;
  });
}

TEST_F(GptTest, InitialValuesDependOnTheSeedAlone) {
  const auto values = [&](const GptConfig& config, uint64_t seed) {
    Gpt gpt(config, "none", seed);
    gpt.initialise(stream(), seed);
    std::map<std::string, std::vector<double>> result;
    gpt.visit([&](Parameter& p) { result[p.name] = read_back_as_double(stream(), p.value); });
    return result;
  };
  const auto first = values(small("fp32"), 5);
  EXPECT_EQ(values(small("fp32"), 5), first);
  EXPECT_NE(values(small("fp32"), 6).at("embedding/weight"), first.at("embedding/weight"));
  for (const auto& [name, rounded] : values(small("bf16"), 5)) {
    if (name.ends_with("router/weight")) {
      EXPECT_EQ(rounded, first.at(name)) << name;
      continue;
    }
    for (size_t i = 0; i < rounded.size(); ++i)
      ASSERT_EQ(rounded[i], static_cast<float>(BFloat16(first.at(name)[i]))) << name;
  }
}

TEST_F(GptTest, RunsAreRepeatable) {
  for (const char* precision : {"fp32", "bf16"}) {
    const GptConfig config = with_everything(precision);
    expect_same(run(config, make_run(stream())), run(config, make_run(stream())));
  }
}

TEST_F(GptTest, ReadsNothingThatWasNotWritten) {
  const GptConfig config = with_everything("fp32");
  const Outcome plain = run(config, make_run(stream()));
  device().set_poison_memory(true);
  expect_same(run(config, make_run(stream())), plain);
}

TEST_F(GptTest, DiscardedActivationsChangeNothingAndSaveMemory) {
  for (const char* precision : {"fp32", "bf16"}) {
    const GptConfig config = with_everything(precision);
    const Outcome kept = run(config, make_run(stream()));
    DiscardPolicy policy({Label::Layernorm, Label::MoeAct});
    const Outcome discarded = run(config, make_run(stream()), &policy);
    expect_same(discarded, kept);
    // 2 norms in each of 3 layers, queries, keys and values (8 heads of 4) after theirs, and 40
    // rows of experts in 2 layers. The final norm's output is dropped by the loss head anyway.
    const int64_t element = precision == std::string("fp32") ? 4 : 2;
    EXPECT_EQ(kept.saved_bytes - discarded.saved_bytes,
              (3 * 20 * (2 * 16 + 8 * 4) + 2 * 40 * 6) * element);
  }
}

TEST_F(GptTest, EvaluationSavesNothingAndDropsNothing) {
  const GptConfig config = with_everything("fp32");
  ModuleRun evaluation = make_run(stream());
  evaluation.training = false;
  const Outcome outcome = run(config, evaluation);
  EXPECT_EQ(outcome.num_records, 0u);
  EXPECT_LT(outcome.saved_bytes, 1000);  // rope table, routing plans, totals
  EXPECT_GT(run(config, make_run(stream())).saved_bytes, 10000);
  GptConfig plain = config;
  set_dropout(plain, 0);
  EXPECT_EQ(run(plain, make_run(stream())).tensors.at("y"), outcome.tensors.at("y"));
}

// What is differentiated is a sum over tokens and dropout counts tokens of the global batch, so it
// does not matter how a batch is cut. (The balancing losses are means of micro-batches.)
TEST_F(GptTest, GradientsDoNotDependOnTheCutIntoMicroBatches) {
  GptConfig config = small("fp64");
  set_dropout(config, 0.1);
  Outcome whole = run(config, make_run(stream()));
  const Outcome first = run(config, make_run(stream(), 0, 2));
  const Outcome second = run(config, make_run(stream(), 2, 4));
  Outcome sum = first;
  for (auto& [name, values] : sum.tensors) {
    const std::vector<double>& more = second.tensors.at(name);
    if (name == "y") {
      values.insert(values.end(), more.begin(), more.end());
    } else {
      for (size_t i = 0; i < values.size(); ++i) values[i] += more[i];
    }
  }
  expect_near(sum, whole, 1e-12);
}

// The parts of a model, one behind the other, as stages of a pipeline have them.
class Chain final : public Module {
 public:
  Chain(Stream& stream, const GptConfig& config, const std::vector<ModelPart>& parts) {
    int num_blocks = 0;
    for (const ModelPart& part : parts) {
      gpts.push_back(std::make_unique<Gpt>(config, "none", 1, ModelAxes{}, part));
      gpts.back()->number_blocks_from(num_blocks);
      num_blocks += gpts.back()->num_blocks();
      gpts.back()->initialise(stream, 5);
    }
    visit([&](Parameter& p) { p.grad = zeros(stream, p.shape, accumulate_dtype(p.dtype)); });
  }
  Tensor forward(Pass& pass, const Tensor& x) override {
    Tensor y = x;
    for (const auto& gpt : gpts) y = gpt->forward(pass, y, hooks);
    return y;
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    Tensor dx = dy;
    for (auto gpt = gpts.rbegin(); gpt != gpts.rend(); ++gpt)
      dx = (*gpt)->backward(pass, dx, hooks);
    return dx;
  }
  void visit(const ParameterVisitor& visitor) override {
    for (const auto& gpt : gpts) gpt->visit(visitor);
  }

  std::vector<std::unique_ptr<Gpt>> gpts;
  NotingHooks hooks;
};

// Cuts between layers, before the first and behind the last, and a part of nothing but a layer.
std::vector<std::vector<ModelPart>> cuts() {
  return {{{true, 0, 1, false}, {false, 1, 2, true}},
          {{true, 0, 0, false}, {false, 0, 3, false}, {false, 3, 0, true}},
          {{true, 0, 1, false}, {false, 1, 1, false}, {false, 2, 0, false}, {false, 2, 1, true}}};
}

TEST_F(GptTest, PartsBehindEachOtherAreTheModelBitForBit) {
  for (const bool tied : {true, false}) {
    for (const char* precision : {"fp32", "bf16"}) {
      GptConfig config = with_everything(precision);
      config.model.tie_embeddings = tied;
      config.model.init_std = 0.3;
      Chain whole(stream(), config, {whole_model(config)});
      const Outcome want = run_micro_batch(stream(), whole, {}, {}, make_run(stream()));
      for (const auto& parts : cuts()) {
        Chain chain(stream(), config, parts);
        const Outcome outcome = run_micro_batch(stream(), chain, {}, {}, make_run(stream()));
        EXPECT_EQ(chain.hooks.calls, whole.hooks.calls);
        for (const auto& [name, values] : want.tensors) {
          if (tied && name == "d(embedding/weight)") continue;
          EXPECT_EQ(outcome.tensors.at(name), values) << name;
        }
        if (!tied) continue;
        // Both ends have the weight, and a part of its gradient.
        std::vector<double> sum;
        chain.visit([&](Parameter& p) {
          if (p.name != "embedding/weight") return;
          EXPECT_EQ(p.axis, ReduceAxis::Tied);
          const std::vector<double> part = read_back_as_double(stream(), p.grad);
          sum.resize(part.size());
          for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
        });
        EXPECT_LE(relative_error(sum, want.tensors.at("d(embedding/weight)")), 1e-6);
      }
    }
  }
}

TEST_F(GptTest, PartsHaveEachParameterOnceAndTheTiedOneAtBothEnds) {
  for (const bool tied : {true, false}) {
    GptConfig config = small("fp32");
    config.model.tie_embeddings = tied;
    const std::vector<std::string> whole = parameter_names(config);
    EXPECT_EQ(std::set(whole.begin(), whole.end()).size(), whole.size());
    for (const auto& parts : cuts()) {
      std::vector<std::string> names;
      std::vector<int64_t> moe_layers;
      for (const ModelPart& part : parts) {
        Gpt gpt(config, "none", 1, ModelAxes{}, part);
        EXPECT_EQ(gpt.num_blocks(), part.num_layers + part.embedding + part.head);
        gpt.visit([&](Parameter& p) {
          names.push_back(p.name);
          EXPECT_EQ(p.axis == ReduceAxis::Tied, tied && p.name == "embedding/weight") << p.name;
        });
        for (const auto& counts : gpt.expert_counts()) moe_layers.push_back(counts.moe_layer);
      }
      if (tied) {
        EXPECT_EQ(names.back(), "embedding/weight");
        names.pop_back();
      }
      EXPECT_EQ(names, whole);
      EXPECT_EQ(moe_layers, (std::vector<int64_t>{0, 1}));
    }
  }
}

// What a rank of a described model holds: no group is used.
TEST_F(GptTest, RanksOfADescriptionHoldEverythingTogether) {
  GptConfig config = small("fp32");
  config.model.tie_embeddings = false;
  config.moe.shared_ffn = 6;
  for (const bool sequence : {false, true}) {
    std::map<std::string, int64_t> numel;
    for (int tp = 0; tp < 2; ++tp) {
      for (int ep = 0; ep < 2; ++ep) {
        ModelAxes axes;
        axes.tensor = {.rank = tp, .size = 2, .sequence = sequence};
        axes.expert = {.ep_rank = ep, .ep_size = 2};
        Gpt gpt(config, "none", 1, axes, whole_model(config));
        gpt.visit([&](Parameter& p) {
          const Placement placement = p.placement();
          int64_t rows = 0;
          for (const PlacedRows& run : placement.runs()) rows += run.num_rows;
          const bool is_first_copy = p.axis == ReduceAxis::Expert ? tp == 0 : ep == 0;
          const bool is_replica = tp > 0 && (p.is_copy || p.axis == ReduceAxis::Stage);
          if (is_first_copy && !is_replica) numel[p.name] += rows * placement.num_columns();
        });
      }
    }
    Gpt whole(config, "none", 1);
    whole.visit([&](Parameter& p) { EXPECT_EQ(numel[p.name], p.shape.numel()) << p.name; });
  }
}

class GptOnDevices : public DeviceTest {};

// In BF16 the experts are forced, because rounding may choose others.
TEST_P(GptOnDevices, IsCloseToFloat64) {
  // Relative, in the 2-norm of each tensor.
  const double tolerance = dtype() == DType::F64 ? 1e-12 : dtype() == DType::F32 ? 1e-5 : 1e-1;
  const std::string precision = dtype() == DType::F64   ? "fp64"
                                : dtype() == DType::F32 ? "fp32"
                                                        : "bf16";
  const char* routing = dtype() == DType::BF16 ? "power_law:1" : "none";
  GptModule module(with_everything(precision), routing);
  GptModule exact_module(with_everything("fp64"), routing);
  allocate_parameters(stream(), module, 1, 0.3);
  copy_parameters(stream(), module, reference(), exact_module);
  const Outcome outcome = run_micro_batch(stream(), module, {}, {}, make_run(stream()));
  const Outcome want = run_micro_batch(reference(), exact_module, {}, {}, make_run(reference()));
  expect_near(outcome, want, tolerance);
}

INSTANTIATE_TEST_SUITE_P(Devices, GptOnDevices, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
