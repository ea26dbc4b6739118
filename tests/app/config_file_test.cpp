#include "app/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/check.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char kMinimal[] =
    "[run]\nsteps = 10\n[model]\nlayers = 2\nhidden = 64\nheads = 4\nvocab = 264\nseq = 32\n"
    "[optimizer]\nlr = 1e-3\n[data]\nkind = \"synthetic\"\n";

class ConfigFile : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = (directory_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  std::string minimal(const std::string& more = "") { return write("a.toml", kMinimal + more); }

  static std::string error_of(const std::string& path,
                              const std::vector<std::string>& overrides = {}) {
    try {
      load_valid_config(path, overrides, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      return error.what();
    }
    return "no error";
  }

  testing::TempDir directory_;
};

TEST_F(ConfigFile, ReadsValuesDefaultsAndDerivedValues) {
  const RunConfig config = load_config(minimal("[moe]\nexperts = 4\n"), {});
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.moe.experts, 4);
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.run.seed, 1234);
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.head_dim, 16);
  EXPECT_EQ(config.moe.ffn, config.model.ffn);
  EXPECT_EQ(config.run.name, "a");
  EXPECT_EQ(config.run.dir, "runs/a");
  EXPECT_EQ(config.optimizer.decay_steps, 10);
}

TEST_F(ConfigFile, RemembersOrigins) {
  const std::string path = minimal();
  const RunConfig config = load_config(path, {"run.seed=7"});
  EXPECT_EQ(config.origin("model.layers").text(), path + ":4:1");
  EXPECT_EQ(config.origin("run.seed").text(), "command line");
  EXPECT_EQ(config.origin("model.kv_heads").text(), "derived");
  EXPECT_EQ(config.origin("model.norm").text(), "default");
}

TEST_F(ConfigFile, ASingleValueStandsForAList) {
  const RunConfig config = load_config(
      minimal("[moe]\nlayer_freq = 2\n[moe.router]\nbalance = \"none\"\naux_coeff = 0\n"), {});
  EXPECT_EQ(config.moe.layer_freq, std::vector<int64_t>{2});
  EXPECT_EQ(config.moe.router.balance, std::vector<std::string>{"none"});
  EXPECT_EQ(config.moe.router.aux_coeff, std::vector<double>{0});
}

TEST_F(ConfigFile, QkNormMayBeTrueOrFalse) {
  EXPECT_EQ(load_config(minimal(), {"model.qk_norm=true"}).model.qk_norm, "head");
  EXPECT_EQ(load_config(minimal(), {"model.qk_norm=false"}).model.qk_norm, "none");
  EXPECT_EQ(load_config(minimal(), {"model.qk_norm=full"}).model.qk_norm, "full");
}

TEST_F(ConfigFile, AWordMayStandForANumber) {
  const std::string path = minimal();
  const auto fraction = [&](const std::vector<std::string>& overrides) {
    return load_config(path, overrides).optimizer.offload.fraction;
  };
  EXPECT_EQ(fraction({}), 1.0);
  EXPECT_EQ(fraction({"optimizer.offload.fraction=0.25"}), 0.25);
  EXPECT_EQ(fraction({"optimizer.offload.fraction=0"}), 0.0);
  EXPECT_EQ(fraction({"optimizer.offload.fraction=auto"}), std::nullopt);
  EXPECT_EQ(fraction({"optimizer.offload.fraction=auto", "optimizer.offload.fraction=1"}), 1.0);
  EXPECT_EQ(
      load_config(
          write("b.toml", std::string(kMinimal) + "[optimizer.offload]\nfraction = \"auto\"\n"), {})
          .optimizer.offload.fraction,
      std::nullopt);
}

TEST_F(ConfigFile, OtherWordsAreRefused) {
  const auto expect = [&](const std::string& value, const std::string& what, const std::string& why,
                          const std::string& fix) {
    EXPECT_THAT(error_of(minimal(), {"optimizer.offload.fraction=" + value}),
                AllOf(HasSubstr("error: " + what + "\n"), HasSubstr("why : " + why + "\n"),
                      HasSubstr("try : " + fix)));
  };
  const std::string wanted = "and must be a number or \"auto\"";
  expect("atuo", "wrong type", "it is a string, " + wanted, "\"auto\"");
  expect("half", "wrong type", "it is a string, " + wanted, "write a number or \"auto\"");
  expect("[1]", "wrong type", "it is a list, " + wanted, "write a number or \"auto\"");
  expect("1.5", "illegal value", "fraction must be in [0, 1] or \"auto\"", "1.0");
  expect("nan", "illegal value", "fraction must be in [0, 1] or \"auto\"", "a number in [0, 1]");
  // A field without a word takes none.
  EXPECT_THAT(error_of(minimal(), {"run.time_limit_minutes=auto"}),
              HasSubstr("it is a string, and must be a number\n"));
}

TEST_F(ConfigFile, TrainTakesWeightsAndPaths) {
  const RunConfig config = load_config(minimal("train = [0.7, \"a\", 3, \"b\"]\n"), {});
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"0.7", "a", "3", "b"}));
}

TEST_F(ConfigFile, OverridesAreTomlOrBareWords) {
  const RunConfig config = load_config(
      minimal(),
      {"model.precision=fp64", "activation_offload.modules=[expert_fc1, moe_act]",
       "optimizer.betas=[0.8,0.9]", "debug.throw_at={rank=1, step=3}",
       "debug.force_routing=all_to:[0,1]", "run.name='x=y'", "data.valid=[a/b.c, 'd e']"});
  EXPECT_EQ(config.model.precision, "fp64");
  EXPECT_EQ(config.activation_offload.modules, (std::vector<std::string>{"expert_fc1", "moe_act"}));
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(config.debug.throw_at.rank, 1);
  EXPECT_EQ(config.debug.throw_at.step, 3);
  EXPECT_EQ(config.debug.force_routing, "all_to:[0,1]");
  EXPECT_EQ(config.run.name, "x=y");
  EXPECT_EQ(config.data.valid, (std::vector<std::string>{"a/b.c", "d e"}));
}

TEST_F(ConfigFile, TheLastOverrideWins) {
  EXPECT_EQ(load_config(minimal(), {"run.seed=1", "run.seed=2"}).run.seed, 2);
}

TEST_F(ConfigFile, ExtendsReadsTheBaseFirst) {
  write("base.toml", kMinimal);
  std::filesystem::create_directory(directory_ / "sub");
  const std::string path =
      write("sub/b.toml", "extends = \"../base.toml\"\n[model]\nlayers = 3\n[run]\nname = \"n\"\n");
  const RunConfig config = load_config(path, {});
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_EQ(config.model.hidden, 64);
  EXPECT_EQ(config.origin("model.layers").text(), path + ":3:1");
  EXPECT_THAT(config.origin("model.hidden").text(), HasSubstr("base.toml:5:1"));
}

TEST_F(ConfigFile, RefusesABaseThatIsMissingOrCircular) {
  const std::string missing = write("m.toml", "extends = \"none.toml\"\n");
  EXPECT_THAT(error_of(missing), AllOf(HasSubstr("cannot read the configuration"),
                                       HasSubstr("none.toml"), HasSubstr("m.toml\n")));
  const std::string a = write("c.toml", "extends = \"d.toml\"\n");
  write("d.toml", "extends = \"c.toml\"\n");
  EXPECT_THAT(error_of(a), HasSubstr("extends itself"));
  EXPECT_THAT(error_of(minimal(), {"extends=x.toml"}), HasSubstr("unknown key"));
  EXPECT_THAT(error_of(write("e.toml", "extends = 3\n")), HasSubstr("e.toml:1:1   extends = 3"));
}

TEST_F(ConfigFile, RefusesAFileThatIsNotThereOrNotToml) {
  EXPECT_THAT(error_of("no/such.toml"), HasSubstr("there is no such file"));
  EXPECT_THAT(error_of(directory_.path().string()), HasSubstr("it is not a file"));
  const std::string path = write("x.toml", "[run]\nsteps = [1\n");
  EXPECT_THAT(error_of(path), AllOf(HasSubstr("not a TOML file"), HasSubstr(path + ":2:")));
}

TEST_F(ConfigFile, UnknownKeyNamesPlaceLegalKeysAndTheNearest) {
  const std::string path = minimal("[moe]\nexprets = 4\n");
  EXPECT_EQ(error_of(path).substr(0, 8 + 11), "error: unknown key\n");
  EXPECT_THAT(error_of(path), AllOf(HasSubstr("--> " + path + ":14:1   moe.exprets = 4\n"),
                                    HasSubstr("why : [moe] has: experts, top_k, ffn"),
                                    HasSubstr("try : moe.experts")));
}

TEST_F(ConfigFile, AKeyInTheWrongTableIsFoundElsewhere) {
  EXPECT_THAT(error_of(minimal(), {"moe.z_coeff=0.1"}), HasSubstr("try : moe.router.z_coeff"));
}

TEST_F(ConfigFile, WhichPartTheHostTakesFollowsTheFraction) {
  const std::string path = minimal();
  const auto takes_last = [&](const std::vector<std::string>& overrides) {
    return load_config(path, overrides).optimizer.offload.takes_last();
  };
  const std::string automatic = "optimizer.offload.fraction=auto";
  EXPECT_FALSE(takes_last({}));
  EXPECT_TRUE(takes_last({automatic}));
  EXPECT_TRUE(takes_last({"optimizer.offload.take=last"}));
  EXPECT_FALSE(takes_last({automatic, "optimizer.offload.take=first"}));
}

TEST_F(ConfigFile, NamesOfOtherProgramsLeadToOurs) {
  EXPECT_THAT(error_of(minimal(), {"model.num_layers=2"}), HasSubstr("try : model.layers"));
  EXPECT_THAT(error_of(minimal(), {"moe.moe_z_loss_coeff=0.1"}),
              HasSubstr("try : moe.router.z_coeff"));
  EXPECT_THAT(error_of(minimal(), {"optimizer.use_precision_aware_optimizer=true"}),
              HasSubstr("try : optimizer.precision_aware"));
  EXPECT_THAT(error_of(minimal(), {"recompute_modules=[moe]"}),
              HasSubstr("try : recompute.modules"));
}

TEST_F(ConfigFile, UnknownTable) {
  EXPECT_THAT(error_of(minimal("[modle]\nlayers = 1\n")), HasSubstr("try : model"));
  EXPECT_THAT(error_of(minimal("[quark]\n")), HasSubstr("try : remove it"));
}

TEST_F(ConfigFile, WrongTypes) {
  const auto expect = [&](const std::string& text, const std::string& why, const std::string& fix) {
    EXPECT_THAT(error_of(minimal(), {text}),
                AllOf(HasSubstr("error: wrong type\n  --> command line   " + text + "\n"),
                      HasSubstr("why : " + why + "\n"), HasSubstr("try : " + fix)));
  };
  expect("model.layers='2'", "it is a string, and must be an integer", "write an integer");
  expect("model.layers=2.0",
         "it is a number with a fraction or an exponent, and must be an integer", "2");
  expect("optimizer.lr=high", "it is a string, and must be a number", "write a number");
  expect("run.fresh=1", "it is an integer, and must be true or false", "write true or false");
  expect("run.name=3", "it is an integer, and must be a string", "\"3\"");
  expect("moe=3", "moe is a table of keys, not an integer", "[moe] and its keys");
  expect("optimizer.betas=a", "it is a string, and must be a list of numbers",
         "write a list of numbers");
  expect("model.seq={a=1}", "it is a table, and must be an integer", "write an integer");
  expect("optimizer.betas=[0.9, x]", "element \"x\": it is a string, and must be a number",
         "write a number");
}

TEST_F(ConfigFile, IllegalValues) {
  const auto expect = [&](const std::string& text, const std::string& why, const std::string& fix) {
    EXPECT_THAT(error_of(minimal(), {text}),
                AllOf(HasSubstr("error: illegal value\n"), HasSubstr("why : " + why + "\n"),
                      HasSubstr("try : " + fix)));
  };
  expect("model.precision=fp61", "precision must be one of \"bf16\", \"fp32\", \"fp64\"",
         "\"fp64\"");
  expect("model.layers=0", "layers must be in [1, 100000]", "1");
  expect("model.hidden=9000000000000000000", "hidden must be in [1, 10000000]", "10000000");
  expect("run.log_every=0", "log_every must be at least 1", "1");
  expect("model.hidden_dropout=1.0", "hidden_dropout must be in [0, 1)", "a number in [0, 1)");
  expect("model.norm_eps=nan", "norm_eps must be above 0", "a number above 0");
  expect("optimizer.weight_decay=inf", "weight_decay must be at least 0", "a number at least 0");
  expect("optimizer.offload.take=frist", "take must be one of \"first\", \"last\"", "\"first\"");
  expect("optimizer.betas=[0.9,1.5]", "element 1.5: betas must be in [0, 1)", "a number in [0, 1)");
  expect("moe.router.balance=[aux_loss,aux]",
         "element \"aux\": balance must be one of \"aux_loss\", \"seq_aux_loss\", "
         "\"global_aux_loss\", \"none\"",
         "one of these");
}

TEST_F(ConfigFile, MissingKeys) {
  const std::string path = write("m.toml", "[model]\nlayers = 1\n");
  const std::string text = error_of(path);
  for (const char* key :
       {"run.steps", "model.hidden", "model.heads", "model.vocab", "model.seq", "optimizer.lr"}) {
    EXPECT_THAT(text,
                HasSubstr("error: missing key\n  --> " + path + "   " + key + " is not set\n"));
  }
  EXPECT_THAT(text, Not(HasSubstr("model.layers is not set")));
}

TEST_F(ConfigFile, AMisspeltKeyIsNotMissingAsWell) {
  const std::string text = error_of(write("m.toml", "[run]\nstep = 3\n"));
  EXPECT_THAT(text, HasSubstr("try : run.steps"));
  EXPECT_THAT(text, Not(HasSubstr("run.steps is not set")));
}

TEST_F(ConfigFile, ListsAllErrorsAtOnceInOrderOfPlace) {
  const std::string path = write(
      "m.toml",
      "[run]\nsteps = 1\n[model]\nzebra = 1\nlayers = 0\nhidden = 64\nheads = 4\nkv_heads = 3\n"
      "vocab = 264\nseq = 8\n[optimizer]\nlr = \"x\"\n[data]\nkind = \"synthetic\"\n");
  const std::string text = error_of(path, {"oops", "run.backend=gpu"});
  const std::vector<std::string> parts = {"model.zebra = 1",
                                          "model.layers = 0",
                                          "optimizer.lr = \"x\"",
                                          "cannot read an override",
                                          "run.backend=gpu",
                                          "model.kv_heads does not divide model.heads",
                                          "6 errors in the configuration"};
  size_t at = 0;
  for (const std::string& part : parts) {
    const size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " is missing or out of order in\n" << text;
    at = found;
  }
}

TEST_F(ConfigFile, ARuleIsNotAppliedToAValueThatCouldNotBeRead) {
  EXPECT_THAT(error_of(minimal(), {"model.kv_heads=3.5"}), Not(HasSubstr("does not divide")));
}

TEST_F(ConfigFile, OverridesThatCannotBeRead) {
  for (const char* text : {"oops", "=3", "run steps=3", "run..steps=3", "run.seed=1\nx=2"}) {
    EXPECT_THAT(error_of(minimal(), {text}), HasSubstr("error: ")) << text;
  }
}

TEST(OverrideToToml, BareWordsBecomeStrings) {
  EXPECT_EQ(override_to_toml("3"), "3");
  EXPECT_EQ(override_to_toml("true"), "true");
  EXPECT_EQ(override_to_toml("fp64"), "\"fp64\"");
  EXPECT_EQ(override_to_toml("a b"), "\"a b\"");
  EXPECT_EQ(override_to_toml(""), "\"\"");
  EXPECT_EQ(override_to_toml("[a,1, \"b\"]"), "[\"a\",1, \"b\"]");
  EXPECT_EQ(override_to_toml("{rank=1,name=x}"), "{rank=1,name=\"x\"}");
  EXPECT_EQ(override_to_toml("skip:[1]"), "\"skip:[1]\"");
}

}  // namespace
}  // namespace ferry
