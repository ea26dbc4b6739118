#include "app/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/check.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void put(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

std::vector<std::string> keys_of(const nlohmann::ordered_json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

StepReport report() {
  StepReport r;
  r.step = 7;
  r.samples = 112;
  r.total_tokens = 1792;
  r.loss = 1.25;
  r.grad_norm = 0.5;
  r.lr = 1e-3;
  r.seconds = 2;
  r.data_seconds = 0.25;
  r.optimizer_seconds = 0.125;
  r.tokens = 256;
  r.flops = 8e12;
  r.peak_bytes = 4096;
  r.pinned_bytes = 64;
  return r;
}

class Metrics : public ::testing::Test {
 protected:
  testing::TempDir dir_;
};

TEST_F(Metrics, LinesAreAppendedAndFlushed) {
  JsonLines lines(dir_ / "m.jsonl");
  lines.write({{"step", 1}, {"loss", 0.1}});
  EXPECT_EQ(text_of(dir_ / "m.jsonl"), "{\"step\":1,\"loss\":0.1}\n");
  JsonLines more(dir_ / "m.jsonl");
  more.write({{"step", 2}});
  EXPECT_EQ(text_of(dir_ / "m.jsonl"), "{\"step\":1,\"loss\":0.1}\n{\"step\":2}\n");
}

TEST_F(Metrics, ATornLastLineIsRemovedBeforeAppending) {
  put(dir_ / "m.jsonl", "{\"step\":1}\n{\"st");
  JsonLines(dir_ / "m.jsonl").write({{"step", 2}});
  EXPECT_EQ(text_of(dir_ / "m.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
  put(dir_ / "torn.jsonl", "{\"st");
  JsonLines(dir_ / "torn.jsonl").write({{"step", 1}});
  EXPECT_EQ(text_of(dir_ / "torn.jsonl"), "{\"step\":1}\n");
}

TEST_F(Metrics, AFullDiskIsAStorageError) {
  JsonLines lines("/dev/full");
  const std::string text = error_of(ExitCode::Storage, [&] { lines.write({{"step", 1}}); });
  EXPECT_THAT(text, HasSubstr("cannot write /dev/full"));
  EXPECT_THAT(text, HasSubstr("the disk is full"));
}

TEST_F(Metrics, AnImpossibleFileIsAStorageError) {
  EXPECT_THAT(error_of(ExitCode::Storage, [&] { JsonLines(dir_ / "absent" / "m.jsonl"); }),
              HasSubstr("cannot write"));
}

TEST_F(Metrics, AResumedRunMovesLaterLines) {
  put(dir_ / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4");
  cut_metrics_after(dir_.path(), 2);
  EXPECT_EQ(text_of(dir_ / "metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(text_of(dir_ / "metrics.jsonl.1"), "{\"step\":3}\n");
  EXPECT_FALSE(fs::exists(dir_ / "metrics.jsonl.next"));
  // A second time adds to what was cut before.
  put(dir_ / "metrics.jsonl", "{\"step\":2}\n{\"step\":3,\"again\":true}\n");
  cut_metrics_after(dir_.path(), 2);
  EXPECT_EQ(text_of(dir_ / "metrics.jsonl.1"), "{\"step\":3}\n{\"step\":3,\"again\":true}\n");
}

TEST_F(Metrics, NothingIsMadeWhereNothingIsCut) {
  cut_metrics_after(dir_.path(), 2);
  EXPECT_TRUE(fs::is_empty(dir_.path()));
  put(dir_ / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n");
  cut_metrics_after(dir_.path(), 2);
  EXPECT_EQ(text_of(dir_ / "metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_FALSE(fs::exists(dir_ / "metrics.jsonl.1"));
}

TEST_F(Metrics, LinesThatAreNoMetricsAreDropped) {
  put(dir_ / "metrics.jsonl", "5\n{\"step\":\"one\"}\n{}\nnonsense\n{\"step\":1}\n");
  cut_metrics_after(dir_.path(), 2);
  EXPECT_EQ(text_of(dir_ / "metrics.jsonl"), "{\"step\":1}\n");
}

TEST_F(Metrics, WhatCannotBeCutStaysAsItWas) {
  const std::string before = "{\"step\":1}\n{\"step\":2}\n";
  put(dir_ / "metrics.jsonl", before);
  fs::create_directory(dir_ / "metrics.jsonl.1");  // in the way of what is cut
  EXPECT_THAT(error_of(ExitCode::Storage, [&] { cut_metrics_after(dir_.path(), 1); }),
              HasSubstr("metrics.jsonl.1"));
  EXPECT_EQ(text_of(dir_ / "metrics.jsonl"), before);
}

TEST_F(Metrics, ALineHasTheKeysThatApply) {
  const nlohmann::ordered_json line = metrics_line(report(), {2, false});
  EXPECT_THAT(keys_of(line), ElementsAre("step", "samples", "tokens", "loss", "lr", "grad_norm",
                                         "step_s", "tokens_per_s", "tflops", "skipped", "nonfinite",
                                         "host_bytes", "optimizer_s", "exposed_s"));
  EXPECT_EQ(line["step"], 7);
  EXPECT_EQ(line["samples"], 112);
  EXPECT_EQ(line["tokens"], 1792);
  EXPECT_EQ(line["loss"], 1.25);
  EXPECT_EQ(line["tokens_per_s"], 128.0);
  EXPECT_EQ(line["tflops"], 2.0);  // 8 TFLOP in 2 s on 2 ranks
  EXPECT_EQ(line["skipped"], 0);
  EXPECT_EQ(line["host_bytes"], 4096);
  EXPECT_EQ(line["optimizer_s"], 0.125);
  EXPECT_EQ(line["exposed_s"]["data"], 0.25);
}

TEST_F(Metrics, ALineOfAMixtureOnAGpuHasAllKeys) {
  StepReport r = report();
  r.aux_loss = 1.5;
  r.z_loss = 0.25;
  r.valid_loss = 1.75;
  r.mfu = 0.4;
  set_expert_tokens(r, std::vector<double>{3, 1, 0, 4}, 2);
  const nlohmann::ordered_json line = metrics_line(r, {1, true});
  EXPECT_THAT(keys_of(line),
              ElementsAre("step", "samples", "tokens", "loss", "lr", "grad_norm", "aux_loss",
                          "z_loss", "valid_loss", "step_s", "tokens_per_s", "tflops", "mfu",
                          "skipped", "nonfinite", "device_peak_bytes", "pinned_bytes",
                          "optimizer_s", "exposed_s", "expert_tokens"));
  EXPECT_EQ(line["expert_tokens"].dump(), "[[3,1],[0,4]]");
  EXPECT_EQ(line["device_peak_bytes"], 4096);
  EXPECT_EQ(line["pinned_bytes"], 64);
}

TEST_F(Metrics, NumbersThatAreNotFiniteAreNull) {
  StepReport r = report();
  r.loss = std::numeric_limits<double>::quiet_NaN();
  r.grad_norm = std::numeric_limits<double>::infinity();
  EXPECT_EQ(nonfinite_line(r).dump(),
            "{\"step\":7,\"samples\":112,\"loss\":null,\"grad_norm\":null,\"skipped\":1,"
            "\"nonfinite\":1}");
}

TEST_F(Metrics, AnEventSaysWhatAndWhen) {
  const nlohmann::ordered_json made = event("saved", 7);
  EXPECT_THAT(keys_of(made), ElementsAre("time", "event", "step"));
  EXPECT_EQ(made["event"], "saved");
  EXPECT_EQ(made["step"], 7);
  EXPECT_THAT(made["time"].get<std::string>(), ::testing::MatchesRegex("20..-..-..T..:..:..Z"));
}

TEST(StepReport, CountsBalanceAndDeadExperts) {
  StepReport r;
  set_expert_tokens(r, std::vector<double>{4, 4, 4, 4, 10, 6, 0, 0}, 4);
  EXPECT_EQ(r.balance, 2.5);  // 10 of a mean of 4
  EXPECT_EQ(r.dead_experts, 2);
  EXPECT_THAT(r.expert_tokens, ElementsAre(ElementsAre(4, 4, 4, 4), ElementsAre(10, 6, 0, 0)));
  set_expert_tokens(r, std::vector<double>{0, 0}, 2);
  EXPECT_EQ(r.balance, 0);
  EXPECT_EQ(r.dead_experts, 2);
  set_expert_tokens(r, {}, 0);
  EXPECT_TRUE(r.expert_tokens.empty());
  EXPECT_EQ(r.dead_experts, 0);
  EXPECT_THROW(set_expert_tokens(r, std::vector<double>{1, 2, 3}, 2), Error);
}

}  // namespace
}  // namespace ferry
