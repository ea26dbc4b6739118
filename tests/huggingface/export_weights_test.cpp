#include "huggingface/export_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/forwarding_file_system.h"
#include "huggingface/weight_files.h"
#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::tiny_model;
using testing::Weights;

std::vector<float> read_all(const WeightFiles& files, const std::string& name) {
  const WeightFiles::Place& place = files.tensors().at(name);
  std::vector<float> values(static_cast<size_t>(place.tensor.shape.numel()));
  files.read(place, 0, place.tensor.shape.numel(), values.data());
  return values;
}

std::vector<float> part(const Weights& weights, const std::string& name, int64_t first,
                        int64_t count) {
  const std::vector<float>& all = weights.at(name).second;
  return {all.begin() + first, all.begin() + first + count};
}

TEST(ExportWeights, ValuesAreThoseOfTheCheckpoint) {
  const TempDir dir;
  const ModelDescription model = tiny_model(HfFamily::Olmoe);
  const Weights weights = testing::random_weights(model);
  const Checkpoint checkpoint = testing::save_weights(dir / "run", weights);
  const ExportReport report = export_weights(checkpoint, model, {dir.path(), DType::F32});
  EXPECT_THAT(report.files, ElementsAre("model.safetensors"));
  const WeightFiles files(dir.path());
  EXPECT_EQ(files.tensors().size(), static_cast<size_t>(report.num_tensors));
  EXPECT_EQ(read_all(files, "model.layers.1.self_attn.v_proj.weight"),
            part(weights, "model/layers/1/attention/qkv/weight", 12 * 8, 4 * 8));
  EXPECT_EQ(read_all(files, "model.layers.0.mlp.experts.2.up_proj.weight"),
            part(weights, "model/layers/0/moe/experts/fc1/weight", 2 * 80 + 40, 40));
  EXPECT_EQ(read_all(files, "model.layers.0.mlp.experts.1.down_proj.weight"),
            part(weights, "model/layers/0/moe/experts/fc2/weight", 40, 40));
}

TEST(ExportWeights, Bf16IsRoundedToNearestAndFilesAreLimited) {
  const TempDir dir;
  const ModelDescription model = tiny_model(HfFamily::Mixtral);
  const Weights weights = testing::random_weights(model);
  const Checkpoint checkpoint = testing::save_weights(dir / "run", weights);
  const ExportReport report = export_weights(checkpoint, model, {dir.path(), DType::BF16, 400});
  ASSERT_GT(report.files.size(), 3u);
  EXPECT_THAT(report.files.front(), HasSubstr("model-00001-of-000"));
  EXPECT_EQ(report.files.back(), "model.safetensors.index.json");
  const WeightFiles files(dir.path());
  int64_t bytes = 0;
  std::map<size_t, int64_t> sizes;
  for (const auto& [name, place] : files.tensors()) {
    bytes += place.tensor.bytes();
    sizes[place.file] += place.tensor.bytes();
  }
  EXPECT_EQ(bytes, report.bytes);
  for (const auto& [file, size] : sizes) EXPECT_LE(size, 400);
  const std::string index =
      read_text(posix_file_system(), dir / "model.safetensors.index.json", 1 << 20);
  EXPECT_THAT(index, HasSubstr(concat("\"total_size\": ", report.bytes)));
  const std::vector<float> read = read_all(files, "lm_head.weight");
  const std::vector<float>& exact = weights.at("model/lm_head/weight").second;
  for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i], float(BFloat16(exact[i])));
}

TEST(ExportWeights, ACheckpointOfAnotherModelIsRefusedWithATable) {
  const TempDir dir;
  const ModelDescription model = tiny_model(HfFamily::Qwen3Moe);
  Weights weights = testing::random_weights(model);
  weights.erase("model/final_norm/weight");
  weights["model/extra/weight"] = {{1}, {0.0f}};
  weights["model/layers/0/attn_norm/weight"] = {{3}, {1, 2, 3}};
  const Checkpoint checkpoint = testing::save_weights(dir / "run", weights);
  EXPECT_THAT(error_of([&] { export_weights(checkpoint, model, {dir.path()}); }),
              AllOf(HasSubstr("4: error:"), HasSubstr("model/final_norm/weight"),
                    HasSubstr("model/extra/weight"), HasSubstr("f32 [3]")));
  EXPECT_FALSE(std::filesystem::exists(dir / "model.safetensors"));
}

// Changes one byte of what is read back after writing.
class Forgetful final : public ForwardingFileSystem {
 public:
  std::unique_ptr<File> open(const Path& path) override {
    return std::make_unique<Flipped>(real_.open(path));
  }

 private:
  class Flipped final : public File {
   public:
    explicit Flipped(std::unique_ptr<File> file) : file_(std::move(file)) {}
    void write_at(const void*, size_t, int64_t) override {}
    void read_at(void* data, size_t bytes, int64_t position) const override {
      file_->read_at(data, bytes, position);
      if (position + static_cast<int64_t>(bytes) == size())
        static_cast<char*>(data)[bytes - 1] ^= 1;
    }
    int64_t size() const override { return file_->size(); }
    void sync() override {}
    void drop_cache() override {}
    void close() override {}

   private:
    std::unique_ptr<File> file_;
  };
};

TEST(ExportWeights, AWrongByteIsFoundByReadingBack) {
  const TempDir dir;
  const ModelDescription model = tiny_model(HfFamily::Mixtral);
  const Checkpoint checkpoint = testing::save_weights(dir / "run", testing::random_weights(model));
  Forgetful forgetful;
  ExportRequest request{dir.path()};
  request.file_system = &forgetful;
  EXPECT_THAT(error_of([&] { export_weights(checkpoint, model, request); }),
              AllOf(HasSubstr("4: error:"), HasSubstr("reads back wrong"),
                    HasSubstr("tensor lm_head.weight")));
}

}  // namespace
}  // namespace ferry
