#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>

#include "checkpoint/manifest.h"
#include "checkpoint/run_id.h"
#include "tests/checkpoint/sample_manifest.h"
#include "tests/checkpoint/sample_model.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::sample_manifest;
using testing::storage_error;

TEST(ManifestText, RoundTrip) {
  const std::string text = manifest_text(sample_manifest());
  const Manifest manifest = parse_manifest(text, "it");
  EXPECT_EQ(manifest.state, sample_manifest().state);
  EXPECT_EQ(manifest.tensors[0].slices[1].address, 116);
  EXPECT_EQ(manifest_text(manifest), text);
}

TEST(ManifestText, ScalarsKeepTypeAndBits) {
  Manifest manifest = sample_manifest();
  manifest.state = {{"third", 1.0 / 3.0},
                    {"whole", 1.0},
                    {"tiny", std::numeric_limits<double>::denorm_min()},
                    {"huge", std::numeric_limits<double>::max()},
                    {"least", std::numeric_limits<int64_t>::min()},
                    {"most", std::numeric_limits<int64_t>::max()},
                    {"text", std::string("a\"\\\n\x01\xc3\xa4")}};
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "it").state, manifest.state);
}

TEST(ManifestText, WhatCannotBeStoredIsRefused) {
  Manifest manifest = sample_manifest();
  manifest.state["lr"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(manifest_text(manifest), Error);
  manifest = sample_manifest();
  manifest.config = "\xff";  // not UTF-8
  EXPECT_THROW(manifest_text(manifest), std::exception);
}

TEST(ManifestText, HasTheDocumentedForm) {
  const std::string text = manifest_text(sample_manifest());
  EXPECT_THAT(text,
              ::testing::StartsWith("{\n\"format\": \"ferry-checkpoint\",\n\"version\": 2,\n"));
  EXPECT_THAT(text, HasSubstr("\"state\": {\"lr\":0.5,\"schedule\":\"cosine\",\"step\":60},\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "\n{\"name\":\"b\",\"dtype\":\"i64\",\"shape\":[3,1],\"digest\":\"0000000000000009"));
  EXPECT_EQ(text.substr(text.size() - 81, 12), ",\n\"sha256\": ");
}

TEST(ManifestText, TheFirstVersionIsStillRead) {
  std::ifstream in(std::string(FERRY_SOURCE_DIR) + "/tests/golden/checkpoint/manifest-v1.json");
  const std::string golden{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const Manifest manifest = parse_manifest(golden, "it");
  EXPECT_EQ(manifest.version, 1);
  EXPECT_EQ(manifest.run, kUnknownRun);
  EXPECT_EQ(manifest.parent->run, kUnknownRun);
  EXPECT_EQ(manifest.step, 60);
  EXPECT_EQ(root_digest(manifest), root_digest(sample_manifest()));
  EXPECT_EQ(manifest_text(manifest), golden);
}

TEST(ManifestText, SecondVersionsSayTheRunAndTheDigestOfTheConfiguration) {
  const std::string text = manifest_text(sample_manifest());
  EXPECT_THAT(text, HasSubstr("\"version\": 2,\n\"run\": \"" + std::string(32, 'b') + "\",\n"));
  EXPECT_THAT(text, HasSubstr(",\"run\":\"" + std::string(32, 'c') + "\"},\n"));
  EXPECT_THAT(text, HasSubstr("\"config\": \"[run]\\n\",\n\"config_digest\": \"" +
                              config_digest("[run]\n") + "\",\n"));
  const Manifest manifest = parse_manifest(text, "it");
  EXPECT_EQ(manifest.run, std::string(32, 'b'));
  EXPECT_EQ(manifest.parent->run, std::string(32, 'c'));
}

TEST(ManifestText, EveryFlippedBitIsRefused) {
  const std::string text = manifest_text(sample_manifest());
  for (size_t i = 0; i < 8 * text.size(); ++i) {
    std::string damaged = text;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    ASSERT_THAT(storage_error([&] { parse_manifest(damaged, "it"); }), HasSubstr("it is refused: "))
        << i;
  }
  for (size_t length = 0; length < text.size(); ++length) {
    ASSERT_THAT(storage_error([&] { parse_manifest(text.substr(0, length), "it"); }),
                HasSubstr("it is refused: "));
  }
}

}  // namespace
}  // namespace ferry
