#include "checkpoint/global_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/checkpoint/sample_model.h"
#include "tests/checkpoint/thread_control.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::SampleModel;

/// What a command prints; fails the test if it exits with an error.
std::string output_of(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string text;
  char buffer[4096];
  for (size_t got; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    text.append(buffer, got);
  EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << text;
  return text;
}

bool is_installed(const std::string& tool) {
  return std::system(("command -v " + tool + " > /dev/null 2>&1").c_str()) == 0;
}

/// global.h5 as stock tools see it.
class GlobalFile : public ::testing::Test {
 protected:
  GlobalFile() {
    // Easy to find in the output of a tool.
    for (size_t i = 0; i < 7; ++i) {
      const float value = 0.5f * static_cast<float>(i + 1);
      std::memcpy(model_.tensors()[3].bytes.data() + 4 * i, &value, 4);
    }
    for (size_t i = 0; i < 48; ++i) {
      const BFloat16 value(static_cast<float>(i) - 8.0f);
      std::memcpy(model_.tensors()[2].bytes.data() + 2 * i, &value.bits, 2);
    }
    const auto errors = testing::run_ranks(2, [&](Control& control) {
      begin_attempt(run_.path(), control);
      testing::RankSlices slices(model_, control.rank(), 2);
      const std::vector<SliceToSave> to_save = slices.to_save();
      SaveRequest request = testing::sample_request(run_.path(), to_save, {});
      request.aliases = {{"second/name", "model"}};
      save_checkpoint(request, control);
    });
    EXPECT_THAT(errors, ::testing::Each(""));
    // Shards are found beside the file wherever the directory is moved.
    std::filesystem::rename(run_ / "ckpt/step-00000060", run_ / "moved");
    global_ = (run_ / "moved/global.h5").native();
  }

  testing::TempDir run_;
  SampleModel model_;
  std::string global_;
};

TEST_F(GlobalFile, H5lsShowsWholeTensorsUnderGlobalNames) {
  if (!is_installed("h5ls")) GTEST_SKIP() << "h5ls is not installed";
  const std::string text = output_of("h5ls -r " + global_);
  for (const char* line :
       {"/model/embedding/weight  Dataset {10, 6}",
        "/model/layers/0/moe/experts/fc1/weight Dataset {4, 6, 5}",
        "/optimizer/master/layers/0/attention/proj/weight Dataset {6, 8}",
        "/optimizer/exp_avg_sq/layers/0/attention/proj/weight Dataset {2, 3, 2, 4}",
        "/state/step              Dataset {SCALAR}", "/state/data/position     Dataset {SCALAR}",
        "/state/router_bias       Dataset {1, 4}",
        "/second/name             Group, same as /model"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(GlobalFile, H5dumpShowsValuesOfAllShards) {
  if (!is_installed("h5dump")) GTEST_SKIP() << "h5dump is not installed";
  EXPECT_THAT(output_of("h5dump -d /model/layers/0/norm/weight " + global_),
              HasSubstr("(0): 0.5, 1, 1.5, 2, 2.5, 3, 3.5"));
  // Cut along dim 1 between two shards, and bfloat16.
  const std::string text = output_of("h5dump -d /model/layers/0/attention/proj/weight " + global_);
  EXPECT_THAT(text, HasSubstr("DATATYPE  \"/types/bfloat16\""));
  EXPECT_THAT(text, HasSubstr("(0,0): -8, -7, -6, -5, -4, -3, -2, -1,"));
  EXPECT_THAT(text, HasSubstr("(5,0): 32, 33, 34, 35, 36, 37, 38, 39"));
  EXPECT_THAT(output_of("h5dump -d /state/lr " + global_), HasSubstr("(0): 0.00125"));
  EXPECT_THAT(output_of("h5dump -a /optimizer/exp_avg/description " + global_),
              HasSubstr("first moment"));
  EXPECT_THAT(output_of("h5dump -a /config " + global_), HasSubstr("[run]"));
}

TEST_F(GlobalFile, AMissingShardReadsAsNaNNotAsZeros) {
  if (!is_installed("h5dump")) GTEST_SKIP() << "h5dump is not installed";
  std::filesystem::remove(run_ / "moved/shard-00001.h5");
  EXPECT_THAT(output_of("h5dump -d /model/layers/0/norm/weight " + global_),
              HasSubstr("(0): 0.5, 1, 1.5, nan, nan, nan, nan"));
}

TEST_F(GlobalFile, H5pyReadsTensorsAndScalars) {
  // The system's Python: another one would not have its packages.
  const std::string python = "env PATH=/usr/bin:/bin python3";
  if (std::system((python + " -c 'import h5py' > /dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "h5py is not installed";
  }
  const std::string script =
      "import h5py, sys; f = h5py.File(sys.argv[1], \"r\"); "
      "w = f[\"model/layers/0/attention/proj/weight\"]; "
      "print(w.shape, w.dtype, float(w[()].sum()), int(f[\"state/step\"][()]), "
      "f.attrs[\"format\"])";
  // Sum of i - 8 for i below 48.
  EXPECT_EQ(output_of("cd / && " + python + " -c '" + script + "' " + global_),
            "(6, 8) float32 744.0 60 ferry-checkpoint\n");
}

}  // namespace
}  // namespace ferry
