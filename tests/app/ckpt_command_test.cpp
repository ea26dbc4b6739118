#include "app/ckpt_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
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
    SoloControl control;
    SaveRequest request;
    request.run_dir = run_.path();
    request.attempt = begin_attempt(run_.path(), control).number;
    request.config = "[run]\nname = \"sample\"\n";
    const std::vector<float> weight(60, 0.5f);
    const SliceToSave slice{
        "model/embedding/weight", DType::F32, {10, 6}, {0, 0}, {10, 6}, weight.data()};
    request.slices = {&slice, 1};
    for (const int64_t step : {30, 60}) {
      request.step = step;
      request.state = {{"samples", step * 16}};
      root_ = save_checkpoint(request, control).root;
    }
    newest_ = (run_ / "ckpt/step-00000060").native();
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
  for (const char* name : {"list", "show", "verify", "hash"}) {
    EXPECT_THAT(root.get_subcommand("ckpt")->get_subcommand(name)->help(),
                HasSubstr(concat("Example:\n  ferry ckpt ", name, " runs/quickstart")));
  }
}

}  // namespace
}  // namespace ferry
