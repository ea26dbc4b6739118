// Any layout gives the numbers of one rank: random small models, shared in random ways.

#include "tests/app/layouts.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "tests/app/layout_case.h"
#include "tests/app/planted_group.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {
namespace {

// Chosen so that together they try everything; see CoverEveryKind.
constexpr uint64_t kSeeds[] = {3,   13,  42,  106, 138, 163, 166, 205, 229, 254,
                               259, 313, 331, 466, 494, 509, 514, 524, 531, 555};
constexpr uint64_t kFirstRandomSeed = 1000;

LayoutOutcome train_on_threads(const RunConfig& config, int ranks, const std::string& axis,
                               Mistake mistake) {
  LayoutOutcome outcome;
  run_ranks(ranks, [&](Group& world, Control&) {
    PlantedGroup planted(world, axis, mistake);
    const LayoutOutcome own = train_layout(config, world, planted);
    if (world.rank() == 0) outcome = own;
  });
  return outcome;
}

// How the case differs from one rank; nothing if all is well.
std::string failure_of(const LayoutCase& made) {
  try {
    const RunConfig config = made.config();
    const auto lines =
        differences(train_on_threads(config, made.ranks, "none", Mistake::None),
                    train_alone(made.one_rank()), layout_tolerance(config.model.precision));
    if (lines.empty()) return "";
    return concat("seed ", made.seed, ":\n  ", made.command(), joined(lines));
  } catch (const std::exception& error) {
    return concat("seed ", made.seed, ":\n  ", made.command(), "\n  ", error.what());
  }
}

class Layouts : public ::testing::TestWithParam<uint64_t> {};

TEST_P(Layouts, EqualOneRank) {
  const std::string failure = failure_of(make_layout_case(GetParam()));
  EXPECT_TRUE(failure.empty()) << failure;
}

INSTANTIATE_TEST_SUITE_P(Seeds, Layouts, ::testing::ValuesIn(kSeeds));

// What a case tries.
struct Kind {
  const char* name;
  std::function<bool(const RunConfig&, const Mesh&)> has;
  int least = 2;
};

const std::vector<Kind>& kinds() {
  using C = RunConfig;
  using M = Mesh;
  static const std::vector<Kind> all = {
      {"1 rank", [](const C&, const M& m) { return m.world() == 1; }, 1},
      {"2 ranks", [](const C&, const M& m) { return m.world() == 2; }, 3},
      {"4 ranks", [](const C&, const M& m) { return m.world() == 4; }, 5},
      {"8 ranks", [](const C&, const M& m) { return m.world() == 8; }, 5},
      {"tensor", [](const C& c, const M&) { return c.parallel.tensor > 1; }},
      {"sequence", [](const C& c, const M&) { return c.parallel.sequence; }},
      {"tensor, experts, no sequence",
       [](const C& c, const M&) {
         return c.parallel.tensor > 1 && c.moe.experts > 0 && !c.parallel.sequence;
       }},
      {"sequence, experts",
       [](const C& c, const M&) { return c.parallel.sequence && c.moe.experts > 0; }},
      {"expert", [](const C& c, const M&) { return c.parallel.expert > 1; }},
      {"expert_tensor", [](const C& c, const M&) { return c.parallel.expert_tensor > 1; }},
      {"all-to-all",
       [](const C& c, const M&) {
         return c.moe.dispatcher == "alltoall" && c.parallel.expert > 1;
       }},
      {"all-gather",
       [](const C& c, const M&) {
         return c.moe.dispatcher == "allgather" && c.parallel.expert > 1;
       }},
      {"expert and expert_tensor",
       [](const C& c, const M&) { return c.parallel.expert > 1 && c.parallel.expert_tensor > 1; },
       1},
      {"tokens in place",
       [](const C& c, const M& m) {
         return c.moe.gather && c.parallel.expert * c.parallel.expert_tensor == 1 && m.world() > 1;
       }},
      {"tokens in place, but for expert or expert_tensor",
       [](const C& c, const M&) {
         return c.moe.gather && c.parallel.expert * c.parallel.expert_tensor > 1;
       }},
      {"pipeline", [](const C& c, const M&) { return c.parallel.pipeline > 1; }},
      {"pipeline, tied",
       [](const C& c, const M&) { return c.parallel.pipeline > 1 && c.model.tie_embeddings; }},
      {"virtual_stages", [](const C& c, const M&) { return c.parallel.virtual_stages > 1; }},
      {"layout", [](const C& c, const M&) { return !c.parallel.layout.empty(); }},
      {"layout with virtual stages",
       [](const C& c, const M&) { return !c.parallel.layout.empty() && c.virtual_stages() > 1; }},
      {"microbatch_group", [](const C& c, const M&) { return c.parallel.microbatch_group > 0; }},
      {"dp", [](const C&, const M& m) { return m.dp() > 1; }},
      {"edp unlike dp",
       [](const C& c, const M& m) {
         return m.edp() > 1 && m.edp() != m.dp() && c.moe.experts > 0;
       }},
      {"tensor, expert and pipeline",
       [](const C& c, const M&) {
         return c.parallel.tensor > 1 && c.parallel.expert > 1 && c.parallel.pipeline > 1;
       },
       1},
      {"distributed", [](const C& c, const M& m) { return c.optimizer.distributed && m.dp() > 1; }},
      {"distributed, edp unlike dp",
       [](const C& c, const M& m) {
         return c.optimizer.distributed && m.edp() > 1 && m.edp() != m.dp() && c.moe.experts > 0;
       },
       1},
      {"not distributed",
       [](const C& c, const M& m) { return !c.optimizer.distributed && m.dp() > 1; }},
      {"overlap_grad_reduce",
       [](const C& c, const M& m) { return c.optimizer.overlap_grad_reduce && m.dp() > 1; }},
      {"overlap_param_gather",
       [](const C& c, const M& m) { return c.optimizer.overlap_param_gather && m.dp() > 1; }},
      {"hidden dropout",
       [](const C& c, const M& m) { return c.model.hidden_dropout > 0 && m.world() > 1; }},
      {"attention dropout, tensor",
       [](const C& c, const M&) { return c.model.attention_dropout > 0 && c.parallel.tensor > 1; },
       1},
      {"full qk_norm, tensor",
       [](const C& c, const M&) { return c.model.qk_norm == "full" && c.parallel.tensor > 1; }, 1},
      {"forced routing, expert",
       [](const C& c, const M&) {
         return c.debug.force_routing != "none" && c.parallel.expert > 1;
       },
       1},
      {"dense", [](const C& c, const M&) { return c.moe.experts == 0; }},
      {"dense and MoE layers", [](const C& c, const M&) { return c.moe.layer_freq.size() > 1; }},
      {"shared gate", [](const C& c, const M&) { return c.moe.shared_gate; }},
      {"both router losses, tensor",
       [](const C& c, const M&) {
         return c.moe.router.coefficient("aux_loss") > 0 && c.moe.router.z_coeff > 0 &&
                c.moe.experts > 0 && c.parallel.tensor > 1;
       },
       1},
      {"activation offload", [](const C& c, const M&) { return c.activation_offload.enabled; }, 4},
      {"activation offload, pipeline",
       [](const C& c, const M&) { return c.activation_offload.enabled && c.parallel.pipeline > 1; },
       2},
      {"activation offload with recompute",
       [](const C& c, const M&) {
         return c.activation_offload.enabled && c.recompute.granularity == "selective";
       }},
      {"selective recompute",
       [](const C& c, const M&) { return c.recompute.granularity == "selective"; }, 3},
      {"full recompute", [](const C& c, const M&) { return c.recompute.granularity == "full"; }, 1},
      {"fp32", [](const C& c, const M&) { return c.model.precision == "fp32"; }, 6},
      {"fp64", [](const C& c, const M&) { return c.model.precision == "fp64"; }, 6},
  };
  return all;
}

TEST(LayoutCases, CoverEveryKind) {
  std::map<std::string, int> counts;
  for (const uint64_t seed : kSeeds) {
    const LayoutCase made = make_layout_case(seed);
    const RunConfig config = made.config();
    const Mesh mesh(made.ranks, mesh_sizes(config.parallel));
    for (const Kind& kind : kinds()) counts[kind.name] += kind.has(config, mesh);
  }
  for (const Kind& kind : kinds()) EXPECT_GE(counts[kind.name], kind.least) << kind.name;
}

// FERRY_LAYOUT_CASES=N more of them.
TEST(LayoutCases, ManyEqualOneRank) {
  const char* const wanted = std::getenv("FERRY_LAYOUT_CASES");
  if (wanted == nullptr) GTEST_SKIP() << "FERRY_LAYOUT_CASES is not set";
  const std::string_view digits = wanted;
  uint64_t num_cases = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), num_cases);
  ASSERT_TRUE(error == std::errc() && end == digits.data() + digits.size() && num_cases > 0)
      << "FERRY_LAYOUT_CASES=" << digits << " is not a number of cases";
  for (uint64_t i = 0; i < num_cases; ++i) {
    const std::string failure = failure_of(make_layout_case(kFirstRandomSeed + i));
    EXPECT_TRUE(failure.empty()) << failure;
  }
}

// A mistake in the groups of one axis, in a layout that uses them.
struct Planted {
  const char* axis;
  Mistake mistake;
  int ranks;
  std::vector<std::string> layout;
  const char* finds;  // is in one of the lines that say what differs
};

class PlantedMistakes : public ::testing::Test {
 protected:
  // Three layers, the second without experts, tied, with all losses and with clipping.
  static LayoutCase make(int ranks, const std::vector<std::string>& layout) {
    LayoutCase made;
    made.ranks = ranks;
    made.model = {"model.precision=fp64",
                  "model.layers=3",
                  "model.hidden=8",
                  "model.heads=4",
                  "model.kv_heads=2",
                  "model.head_dim=4",
                  "model.ffn=6",
                  "model.vocab=20",
                  "model.seq=4",
                  "model.qk_norm=head",
                  "model.init_std=0.3",
                  "moe.experts=4",
                  "moe.ffn=4",
                  "moe.layer_freq=[1,0,1]",
                  "moe.shared_ffn=4",
                  "moe.router.aux_coeff=0.1",
                  "moe.router.z_coeff=0.01",
                  "batch.micro=1",
                  "batch.global=8",
                  "run.steps=2",
                  "run.eval_every=0",
                  "optimizer.lr=1e-2",
                  "optimizer.eps=1e-2",
                  "optimizer.clip_norm=0.1",
                  "optimizer.warmup_steps=0",
                  "data.kind=synthetic",
                  "data.tokenizer=''",
                  "data.train=[]",
                  "data.valid=[]"};
    made.layout = layout;
    return made;
  }

  static const LayoutOutcome& one_rank() {
    static const LayoutOutcome outcome = train_alone(make(1, {}).one_rank());
    return outcome;
  }

  static std::vector<std::string> lines_of(const Planted& planted, Mistake mistake) {
    const RunConfig config = make(planted.ranks, planted.layout).config();
    return differences(train_on_threads(config, planted.ranks, planted.axis, mistake), one_rank(),
                       layout_tolerance("fp64"));
  }

  static void expect_found(const Planted& planted) {
    const std::string where = concat(planted.axis, ", mistake ", static_cast<int>(planted.mistake),
                                     joined(planted.layout));
    EXPECT_EQ(joined(lines_of(planted, Mistake::None)), "") << where;
    const std::string found = joined(lines_of(planted, planted.mistake));
    EXPECT_NE(found.find(planted.finds), std::string::npos) << where << "\nfound:" << found;
  }
};

const char kWhole[] = "optimizer.distributed=false";
const char kSharded[] = "optimizer.distributed=true";

TEST_F(PlantedMistakes, AMissedReductionIsFound) {
  expect_found({"dp", Mistake::SkipSum, 4, {"parallel.tensor=2", kWhole}, "gradient of"});
  expect_found({"dp", Mistake::SkipSum, 2, {kSharded}, "gradient of"});
  expect_found({"stage",
                Mistake::SkipSum,
                4,
                {"parallel.tensor=2", "parallel.sequence=true", kWhole},
                "gradient of layers/0/attn_norm"});
  expect_found({"edp", Mistake::SkipSum, 4, {"parallel.expert=2", kWhole}, "experts"});
  expect_found({"tied",
                Mistake::SkipSum,
                2,
                {"parallel.pipeline=2", "parallel.layout=Ett|tL", kWhole},
                "gradient of embedding"});
  expect_found({"tp", Mistake::SkipSum, 2, {"parallel.tensor=2"}, "loss"});
  expect_found({"world", Mistake::SkipSum, 2, {kSharded}, "gradient norm"});
}

TEST_F(PlantedMistakes, ADoubledExpertGradientIsFound) {
  expect_found({"edp", Mistake::DoubleSum, 4, {"parallel.expert=2", kWhole}, "experts"});
  expect_found({"edp", Mistake::DoubleSum, 4, {"parallel.expert=2", kSharded}, "experts"});
}

TEST_F(PlantedMistakes, AWrongDivisorIsFound) {
  expect_found({"dp", Mistake::AverageSum, 4, {"parallel.expert=2", kWhole}, "gradient of"});
  expect_found({"dp", Mistake::AverageSum, 4, {"parallel.tensor=2", kSharded}, "gradient of"});
  expect_found({"edp", Mistake::AverageSum, 4, {"parallel.expert=2", kSharded}, "experts"});
}

TEST_F(PlantedMistakes, ASwappedShardIsFound) {
  expect_found({"dp", Mistake::RotateGather, 2, {kSharded}, "weight"});
  expect_found({"dp", Mistake::RotateScatter, 2, {kSharded}, "gradient of"});
  expect_found({"edp", Mistake::RotateScatter, 4, {"parallel.expert=2", kSharded}, "experts"});
  expect_found(
      {"tp", Mistake::RotateGather, 2, {"parallel.tensor=2", "parallel.sequence=true"}, "loss"});
  expect_found({"exchange",
                Mistake::RotateGather,
                2,
                {"parallel.expert=2", "moe.dispatcher=allgather"},
                "loss"});
}

TEST_F(PlantedMistakes, MissedCountsAreFound) {
  expect_found({"tp", Mistake::SkipCounts, 2, {"parallel.tensor=2"}, "router"});
}

}  // namespace
}  // namespace ferry::testing
