#include "huggingface/import_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "huggingface/export_weights.h"
#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::tiny_model;

Checkpoint import_into(const Path& run, const Path& source, const ModelDescription& model) {
  std::filesystem::create_directories(run);
  SaveRequest request;
  request.run_dir = run;
  request.state = {{"step", int64_t{0}}};
  const SaveReport report =
      import_weights(WeightFiles(source), tensor_links(model), {"exp_avg", "exp_avg_sq"}, request);
  return Checkpoint::open(report.directory);
}

TEST(ImportWeights, ExportAndImportKeepEveryBit) {
  for (const HfFamily family : testing::kFamilies) {
    const TempDir dir;
    const ModelDescription model = tiny_model(family);
    const Checkpoint first = testing::save_weights(dir / "run", testing::random_weights(model));
    std::filesystem::create_directory(dir / "hf");
    export_weights(first, model, {dir / "hf", DType::F32, 1000});
    const Checkpoint second = import_into(dir / "back", dir / "hf", model);
    second.verify();
    EXPECT_EQ(testing::weight_digests(second), testing::weight_digests(first));
    EXPECT_EQ(second.step(), 0);
  }
}

TEST(ImportWeights, Bf16ComesBackAsExportedAndMomentsAreZero) {
  const TempDir dir;
  const ModelDescription model = tiny_model(HfFamily::Qwen3Moe);
  const testing::Weights weights = testing::random_weights(model);
  const Checkpoint first = testing::save_weights(dir / "run", weights);
  std::filesystem::create_directory(dir / "hf");
  export_weights(first, model, {dir / "hf", DType::BF16});
  const Checkpoint second = import_into(dir / "back", dir / "hf", model);
  std::vector<float> values(80);
  const auto load = [&](const std::string& name) {
    const SliceToLoad slice{name, DType::F32, {10, 8}, {0, 0}, {10, 8}, values.data()};
    second.load({&slice, 1});
  };
  load("model/embedding/weight");
  const std::vector<float>& exact = weights.at("model/embedding/weight").second;
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], float(BFloat16(exact[i])));
  for (const char* moment : {"exp_avg", "exp_avg_sq"}) {
    load(concat("optimizer/", moment, "/embedding/weight"));
    EXPECT_EQ(values, std::vector<float>(80, 0.0f));
  }
  EXPECT_EQ(second.manifest().tensors.size(), 3 * weights.size());
}

TEST(ImportWeights, UnmatchedAndMissingTensorsAreListedAndNothingIsWritten) {
  const TempDir dir;
  const ModelDescription model = tiny_model(HfFamily::Olmoe);
  const Checkpoint first = testing::save_weights(dir / "run", testing::random_weights(model));
  std::filesystem::create_directory(dir / "hf");
  export_weights(first, model, {dir / "hf", DType::F32});
  ModelDescription other = model;
  other.tie_embeddings = true;  // one that is too many
  other.layers = 3;             // some that are missing
  other.is_moe_layer.push_back(true);
  other.vocab = 12;  // another shape
  EXPECT_THAT(error_of([&] { import_into(dir / "back", dir / "hf", other); }),
              AllOf(HasSubstr("4: error:"), HasSubstr("lm_head.weight"),
                    HasSubstr("model.layers.2.mlp.gate.weight"), HasSubstr("f32 [10, 8]")));
  EXPECT_TRUE(std::filesystem::is_empty(dir / "back"));
}

}  // namespace
}  // namespace ferry
