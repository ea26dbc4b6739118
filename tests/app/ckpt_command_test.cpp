#include "app/ckpt_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/run_id.h"
#include "checkpoint/writer.h"
#include "core/check.h"
#include "core/comm/control.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

struct Result {
  int code = 0;
  std::string out, message;
};

Result run(std::vector<std::string> words) {
  CLI::App root("ferry");
  add_ckpt_command(root);
  Result result;
  ::testing::internal::CaptureStdout();
  try {
    std::reverse(words.begin(), words.end());  // the library takes them from the back
    root.parse(words);
  } catch (const Error& error) {
    result.code = static_cast<int>(error.code());
    result.message = error.what();
  } catch (const CLI::ParseError& error) {
    result.code = 2;
    result.message = error.what();
  }
  result.out = ::testing::internal::GetCapturedStdout();
  return result;
}

class CkptCommand : public ::testing::Test {
 protected:
  CkptCommand() {
    const std::vector<float> weight(60, 0.5f);
    for (const int64_t step : {30, 60}) root_ = save(run_.path(), step, weight).root;
    newest_ = (run_ / "ckpt/step-00000060").native();
  }

  static SaveRequest request_of(const Path& run_dir, int64_t step) {
    SoloControl control;
    SaveRequest request;
    request.run_dir = run_dir;
    request.attempt = begin_attempt(run_dir, control).number;
    request.config = "[run]\nname = \"sample\"\n";
    request.step = step;
    request.state = {{"samples", step * 16}};
    request.keep = 100;
    return request;
  }
  static SaveReport save(const Path& run_dir, int64_t step, const std::vector<float>& weight,
                         std::optional<CheckpointName> parent = {}) {
    SaveRequest request = request_of(run_dir, step);
    request.parent = parent;
    const SliceToSave slice{
        "model/embedding/weight", DType::F32, {10, 6}, {0, 0}, {10, 6}, weight.data()};
    request.slices = {&slice, 1};
    SoloControl control;
    return save_checkpoint(request, control);
  }

  testing::TempDir run_;
  std::string root_, newest_;
};

TEST_F(CkptCommand, ListNamesEveryStepAndWhatIsUnfinishedOrDamaged) {
  std::filesystem::create_directory(run_ / "ckpt/step-00000090.a1.tmp");
  std::filesystem::remove(run_ / "ckpt/step-00000030/MANIFEST.json");
  const Result result = run({"ckpt", "list", run_.path().native()});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr(root_.substr(0, 16) + "  " + newest_));
  EXPECT_THAT(result.out,
              HasSubstr("unfinished  " + (run_ / "ckpt/step-00000090.a1.tmp").native()));
  EXPECT_THAT(result.out, HasSubstr("damaged  " + (run_ / "ckpt/step-00000030").native()));
  EXPECT_THAT(run({"ckpt", "list", newest_}).out, HasSubstr(newest_));
}

TEST_F(CkptCommand, ListAndShowNameTheRunAndTheConfiguration) {
  const std::string id = read_run_id(posix_file_system(), run_.path());
  const std::string config = config_digest("[run]\nname = \"sample\"\n");
  EXPECT_THAT(
      run({"ckpt", "list", run_.path().native()}).out,
      HasSubstr(id.substr(0, 8) + "  " + config.substr(0, 8) + "  " + root_.substr(0, 16) + "  "));
  const std::string text = run({"ckpt", "show", newest_}).out;
  EXPECT_THAT(text, HasSubstr("run         " + id + "\nparent      none\n"));
  EXPECT_THAT(text, HasSubstr("\nconfig " + config + "\n[run]\n"));
  const auto json = nlohmann::json::parse(run({"ckpt", "show", newest_, "--json"}).out);
  EXPECT_EQ(json.at("run"), id);
  EXPECT_EQ(json.at("config_digest"), config);
}

TEST_F(CkptCommand, ListSaysWhereTheChainIsBroken) {
  const std::vector<float> weight(60, 0.25f);
  const std::string other_root(64, 'e'), other_run(32, 'f');
  save(run_.path(), 90, weight, CheckpointName{60, root_});
  save(run_.path(), 120, weight, CheckpointName{60, other_root, other_run});
  EXPECT_THAT(run({"ckpt", "list", run_.path().native()}).out,
              ::testing::Not(HasSubstr("goes on from")));
  EXPECT_THAT(run({"ckpt", "show", (run_ / "ckpt/step-00000120").native()}).out,
              HasSubstr("parent      step 60 " + other_root + " of run " + other_run + "\n"));
  save(run_.path(), 150, weight, CheckpointName{60, other_root});
  EXPECT_THAT(run({"ckpt", "list", run_.path().native()}).out,
              HasSubstr("step-00000150 goes on from a step 60 with root eeeeeeeeeeeeeeee, not from "
                        "the one above\n"));
}

TEST_F(CkptCommand, HashPrintsTheRootOfARunOrACheckpoint) {
  for (const std::string& path : {run_.path().native(), run_.path().native() + "/",
                                  (run_ / "ckpt").native(), newest_, newest_ + "/"}) {
    EXPECT_EQ(run({"ckpt", "hash", path}).out, root_ + "\n") << path;
  }
}

TEST_F(CkptCommand, ShowAsTextAndAsJson) {
  const Result text = run({"ckpt", "show", run_.path().native()});
  EXPECT_THAT(text.out, HasSubstr("step        60\n"));
  EXPECT_THAT(text.out, HasSubstr("model/embedding/weight"));
  EXPECT_THAT(text.out, HasSubstr("f32   [10, 6]"));
  EXPECT_THAT(text.out, HasSubstr("name = \"sample\""));
  const auto json = nlohmann::json::parse(run({"ckpt", "show", newest_, "--json"}).out);
  EXPECT_EQ(json.at("root"), root_);
  EXPECT_EQ(json.at("state").at("samples"), 960);
  EXPECT_EQ(json.at("tensors").size(), 1u);
  EXPECT_EQ(json.at("tensors")[0].at("shape"), (std::vector<int>{10, 6}));
}

TEST_F(CkptCommand, VerifyAndHashRefuseDamage) {
  EXPECT_THAT(run({"ckpt", "verify", newest_}).out,
              HasSubstr("is intact: step 60, tensors 1, files 2"));
  std::filesystem::resize_file(newest_ + "/shard-00000.h5", 100);
  for (const char* command : {"verify", "hash", "show"}) {
    const Result result = run({"ckpt", command, newest_});
    EXPECT_EQ(result.code, 4);
    EXPECT_THAT(result.message, HasSubstr("shard-00000.h5 has 100 bytes instead of"));
  }
  // A run still has the checkpoint before.
  ::testing::internal::CaptureStderr();
  const Result result = run({"ckpt", "verify", run_.path().native()});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rejected " + newest_));
  EXPECT_THAT(result.out, HasSubstr("is intact: step 30"));
}

TEST_F(CkptCommand, DiffOfTwoCheckpoints) {
  const std::string older = (run_ / "ckpt/step-00000030").native();
  const Result same = run({"ckpt", "diff", newest_, run_.path().native()});
  EXPECT_EQ(same.code, 0);
  EXPECT_EQ(same.out, "the same bits: 1 tensors, 2 scalars, root " + root_ + "\n");
  const Result other = run({"ckpt", "diff", older, newest_});
  EXPECT_EQ(other.code, 4);
  EXPECT_EQ(other.message,
            older + " and " + newest_ + " differ in 0 of 1 tensors and 2 of 2 scalars");
  EXPECT_EQ(other.out, "(step): 30 and 60\nsamples: 480 and 960\n");

  std::vector<float> weight(60, 0.5f);
  weight[13] = 0.75f;
  const std::string changed = save(run_ / "changed", 60, weight).directory.native();
  const Result values = run({"ckpt", "diff", newest_, changed});
  EXPECT_EQ(values.code, 4);
  EXPECT_EQ(values.out,
            "model/embedding/weight: 1 of 60 elements differ, by at most 0.25, relative 0.333; "
            "first [2, 1]: 0.5 and 0.75\n");
  const Result as_json = run({"ckpt", "diff", newest_, changed, "--json"});
  EXPECT_EQ(as_json.code, 4);
  const auto json = nlohmann::json::parse(as_json.out);
  EXPECT_EQ(json.at("equal"), false);
  EXPECT_EQ(json.at("num_tensors"), 1);
  EXPECT_EQ(json.at("scalars").size(), 0u);
  EXPECT_EQ(json.at("tensors")[0].at("different"), 1);
  EXPECT_EQ(json.at("tensors")[0].at("largest_absolute"), 0.25);
  EXPECT_EQ(json.at("tensors")[0].at("first"), (std::vector<int>{2, 1}));
  EXPECT_EQ(run({"ckpt", "diff", newest_}).code, 2);
}

TEST_F(CkptCommand, DiffNamesWhatOnlyOneHas) {
  SaveRequest request = request_of(run_ / "other", 60);
  const std::vector<float> weight(60, 0.5f);
  const SliceToSave slice{"model/other", DType::F32, {60}, {0}, {60}, weight.data()};
  request.slices = {&slice, 1};
  request.state = {{"tokens", int64_t{7}}};
  SoloControl control;
  const std::string other = save_checkpoint(request, control).directory.native();
  EXPECT_EQ(run({"ckpt", "diff", newest_, other}).out,
            "model/embedding/weight: only in the first\nmodel/other: only in the second\n"
            "samples: 960 and none\ntokens: none and 7\n");
  const auto json = nlohmann::json::parse(run({"ckpt", "diff", newest_, other, "--json"}).out);
  EXPECT_EQ(json.at("tensors")[1].at("mismatch"), "only in the second");
  EXPECT_EQ(json.at("scalars")[1].at("values"), (std::vector<std::string>{"", "7"}));
}

TEST_F(CkptCommand, ReshardMakesANewRun) {
  const std::string out = (run_ / "out").native();
  const Result result = run({"ckpt", "reshard", run_.path().native(), out, "--writers", "3"});
  EXPECT_EQ(result.code, 0) << result.message;
  EXPECT_THAT(result.out, HasSubstr(out + "/ckpt/step-00000060: step 60 of " + newest_));
  EXPECT_THAT(result.out, HasSubstr("root " + root_));
  EXPECT_TRUE(std::filesystem::exists(out + "/ckpt/step-00000060/shard-00002.h5"));
  EXPECT_EQ(run({"ckpt", "hash", out}).out, root_ + "\n");
  EXPECT_EQ(run({"ckpt", "reshard", newest_, out, "--writers", "3"}).code, 2);
  EXPECT_EQ(run({"ckpt", "reshard", newest_, out + "2", "--writers", "0"}).code, 2);
  EXPECT_EQ(run({"ckpt", "reshard", newest_, out + "2"}).code, 2);
  EXPECT_EQ(run({"ckpt", "reshard", out + "2", out + "3", "--writers", "1"}).code, 4);
}

TEST_F(CkptCommand, PruneSaysWhatItDoes) {
  save(run_.path(), 90, std::vector<float>(60, 0.5f));
  std::filesystem::remove(newest_ + "/global.h5");
  save(run_.path(), 120, std::vector<float>(60, 0.5f));
  save(run_.path(), 10, std::vector<float>(60, 0.5f));
  const std::string ckpt = (run_ / "ckpt/step-000000").native();
  const std::string plan = "keep    " + (run_ / "ckpt/step-00000120").native() + "\nkeep    " +
                           ckpt + "90\nleave   " + newest_ + ": " + newest_ +
                           "/global.h5 is missing\nkeep    " + ckpt + "30\nremove  " + ckpt +
                           "10\n";
  const Result dry = run({"ckpt", "prune", run_.path().native(), "--dry-run"});
  EXPECT_EQ(dry.out, plan + "1 of 5 checkpoints would be removed\n");
  EXPECT_TRUE(std::filesystem::exists(ckpt + "10"));
  EXPECT_EQ(run({"ckpt", "prune", (run_ / "ckpt").native()}).out,
            plan + "1 of 5 checkpoints removed\n");
  EXPECT_FALSE(std::filesystem::exists(ckpt + "10"));
  EXPECT_TRUE(std::filesystem::exists(ckpt + "30"));
  EXPECT_EQ(run({"ckpt", "prune", run_.path().native(), "--keep", "1"}).code, 2);
}

TEST_F(CkptCommand, PruneWantsARun) {
  const testing::TempDir empty;
  for (const std::string& path : {newest_, empty.path().native()}) {
    const Result result = run({"ckpt", "prune", path});
    EXPECT_EQ(result.code, 4);
    EXPECT_EQ(result.message, path + " is no run directory: name the one with ckpt/ in it");
  }
}

TEST_F(CkptCommand, WrongDirectoriesAreExplained) {
  EXPECT_THAT(run({"ckpt", "show", "/nonexistent"}).message,
              HasSubstr("/nonexistent does not exist: name a run directory or a checkpoint"));
  const testing::TempDir empty;
  const Result result = run({"ckpt", "hash", empty.path().native()});
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.message, HasSubstr("holds no checkpoint: name a run directory"));
  std::filesystem::remove(newest_ + "/MANIFEST.json");
  EXPECT_THAT(run({"ckpt", "hash", newest_ + "/"}).message, HasSubstr("has no MANIFEST.json"));
  EXPECT_EQ(run({"ckpt", "hash"}).code, 2);
  EXPECT_EQ(run({"ckpt"}).code, 2);
}

TEST(CkptHelp, EveryCommandHasAnExample) {
  CLI::App root("ferry");
  add_ckpt_command(root);
  for (const char* name : {"list", "show", "verify", "hash", "diff", "reshard", "prune"}) {
    EXPECT_THAT(root.get_subcommand("ckpt")->get_subcommand(name)->help(),
                HasSubstr(concat("Example:\n  ferry ckpt ", name, " runs/quickstart")));
  }
}

}  // namespace
}  // namespace ferry
