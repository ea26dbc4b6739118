#include "huggingface/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;

class WeightFilesTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& tensor) {
    const std::string header = safetensors_header({{tensor, DType::F32, {2}, 0}});
    const float values[] = {1.5f, -2.0f};
    write_text(posix_file_system(), dir_ / name,
               header + std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  }
  void write_index(const std::string& map) {
    std::filesystem::remove(dir_ / "model.safetensors.index.json");
    write_text(posix_file_system(), dir_ / "model.safetensors.index.json",
               "{\"weight_map\":" + map + "}");
  }
  std::string refusal() {
    return error_of([&] { WeightFiles files(dir_.path()); });
  }

  TempDir dir_;
};

TEST_F(WeightFilesTest, ASingleFile) {
  const std::string header = safetensors_header({{"a", DType::BF16, {3}, 0}});
  write_text(posix_file_system(), dir_ / "model.safetensors",
             header + std::string("\x80\x3f\x00\xc0\x20\x41", 6));
  const WeightFiles files(dir_.path());
  float values[2] = {};
  files.read(files.tensors().at("a"), 1, 2, values);
  EXPECT_EQ(values[0], -2.0f);
  EXPECT_EQ(values[1], 10.0f);
}

TEST_F(WeightFilesTest, SeveralFilesWithAnIndex) {
  write("one.safetensors", "a");
  write("two.safetensors", "b");
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const WeightFiles files(dir_.path());
  float value = 0;
  files.read(files.tensors().at("b"), 0, 1, &value);
  EXPECT_EQ(value, 1.5f);
}

TEST_F(WeightFilesTest, IndexAndFilesMustAgree) {
  EXPECT_THAT(refusal(), HasSubstr("has neither model.safetensors nor"));
  write("one.safetensors", "a");
  write("two.safetensors", "a");
  write("three.safetensors", "c");
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("tensor a is in two files"));
  write_index(R"({"a":"one.safetensors","b":"one.safetensors"})");
  EXPECT_THAT(refusal(),
              HasSubstr("places a tensor in one.safetensors, which does not have it: b"));
  write_index(R"({"a":"three.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("does not place tensor c in three.safetensors"));
  write_index(R"({"a":"three.safetensors","c":"one.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("does not place tensor a in one.safetensors"));
  write_index(R"({"a":"missing.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("missing.safetensors"));
  write_index("[]");
  EXPECT_THAT(refusal(), HasSubstr("no object 'weight_map'"));
  write("model.safetensors", "a");
  EXPECT_THAT(refusal(), HasSubstr("has both"));
}

TEST_F(WeightFilesTest, NothingOutsideTheDirectoryIsOpened) {
  write("one.safetensors", "a");
  for (const char* file : {"../one.safetensors", "/etc/one.safetensors", "x/one.safetensors",
                           ".safetensors", "one.bin", ""}) {
    write_index(std::string("{\"a\":\"") + file + "\"}");
    EXPECT_THAT(refusal(), HasSubstr("not named like")) << file;
  }
  write_index(R"({"a":3})");
  EXPECT_THAT(refusal(), HasSubstr("not named like"));
  std::filesystem::create_symlink(dir_ / "one.safetensors", dir_ / "link.safetensors");
  write_index(R"({"a":"link.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("4: "));
}

}  // namespace
}  // namespace ferry
