#include "app/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "app/version.h"
#include "core/check.h"
#include "tests/app/violations.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

using ::testing::StartsWith;

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class ConsoleTest : public ::testing::Test {
 protected:
  ConsoleTest() { fs::create_directories(dir_ / "log"); }

  // What the terminal gets, which must be what the file gets.
  std::string printed(const std::function<void(Console&)>& body) {
    fs::remove(dir_ / "log" / "run.log");
    Console console(true, dir_.path());
    ::testing::internal::CaptureStdout();
    body(console);
    std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(text_of(dir_ / "log" / "run.log"), text);
    return text;
  }

  static StepReport report() {
    StepReport r;
    r.step = 12100;
    r.loss = 2.18432;
    r.grad_norm = 0.412;
    r.lr = 3e-4;
    r.seconds = 7.41;
    r.data_seconds = 0.0222;
    r.tokens = 4194304;
    return r;
  }

  testing::TempDir dir_;
};

TEST_F(ConsoleTest, StepLineOfADenseModelOnTheCpu) {
  EXPECT_EQ(printed([](Console& console) { console.step(report(), 238419, 1, 0); }),
            "step  12,100/238,419   5.1% | loss 2.1843 | gnorm 0.41 | lr 3.00e-04 | 7.41 s | "
            "566.0k tok/s | data 0.3% | eta 19d 9h\n");
}

TEST_F(ConsoleTest, StepLineOfAMixtureOnGpus) {
  StepReport r = report();
  r.aux_loss = 1.012;
  r.z_loss = 0.041;
  r.mfu = 0.413;
  r.peak_bytes = int64_t{101} << 30;
  r.balance = 1.21;
  EXPECT_EQ(printed([&](Console& console) { console.step(r, 238419, 32, int64_t{140} << 30); }),
            "step  12,100/238,419   5.1% | loss 2.1843 | aux 1.012 z 4.1e-02 | gnorm 0.41 | lr "
            "3.00e-04 | 7.41 s | 17.7k tok/s/rank | 41.3% MFU | mem 101/140 | bal 1.21 dead 0 | "
            "data 0.3% | eta 19d 9h\n");
}

TEST_F(ConsoleTest, ZLossAloneIsShown) {
  StepReport r = report();
  r.z_loss = 0.041;
  EXPECT_THAT(printed([&](Console& console) { console.step(r, 238419, 1, 0); }),
              HasSubstr("| loss 2.1843 | z 4.1e-02 | gnorm"));
}

TEST_F(ConsoleTest, TimeLeftFollowsTheMeanOfSteps) {
  StepReport r = report();
  r.step = 1;
  r.seconds = 10;
  const std::string text = printed([&](Console& console) {
    console.step(r, 101, 1, 0);
    r.step = 2;
    r.seconds = 20;  // the mean becomes 11
    console.step(r, 102, 1, 0);
  });
  EXPECT_THAT(text, HasSubstr("eta 16m 40s\n"));
  EXPECT_THAT(text, HasSubstr("eta 18m 20s\n"));
}

TEST_F(ConsoleTest, NoticesStandOut) {
  EXPECT_EQ(printed([](Console& console) { console.notice("look"); }), "! look\n");
}

TEST_F(ConsoleTest, OtherRanksSayNothing) {
  Console console(false, dir_ / "absent");
  ::testing::internal::CaptureStdout();
  console.line("text");
  console.step(report(), 238419, 2, 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST_F(ConsoleTest, ALogThatCannotBeWrittenIsAStorageError) {
  const auto code_of = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("cannot append to log/run.log"));
      return error.code();
    }
    return ExitCode::Done;
  };
  EXPECT_EQ(code_of([&] { Console(true, dir_ / "absent"); }), ExitCode::Storage);
  fs::create_symlink("/dev/full", dir_ / "log" / "run.log");
  EXPECT_EQ(code_of([&] { Console(true, dir_.path()).line("text"); }), ExitCode::Storage);
}

TEST(Banner, SaysWhatRuns) {
  const RunConfig config = testing::quickstart({"run.dir=runs/x", "run.steps=300"});
  Backend backend;
  backend.cpu = make_cpu_device();
  backend.transport = "mpi";
  backend.notice = "slow";
  std::istringstream text(
      banner(config, Mesh(2, {}), backend, "host1", "two files", "from scratch"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 10u);
  EXPECT_THAT(lines[0],
              StartsWith("ferry " + version_text() + " (git " + git_revision() + ")  20"));
  EXPECT_THAT(lines[0], HasSubstr("Z   run: quickstart  -> runs/x"));
  EXPECT_EQ(lines[1], "cluster   2 rank(s) from host1 | cpu | collectives: mpi");
  EXPECT_EQ(lines[2], "grid      world 2 = attention TP1 CP1 DP2 PP1 | experts ETP1 EP1 EDP2 PP1");
  EXPECT_EQ(lines[3],
            "model     4 layers (4 MoE) H128 GQA 4/2 | 8 experts top-2 | 3.38 M parameters, 1.02 M "
            "active | fp32");
  EXPECT_EQ(lines[4],
            "tokens    2.0k / step (GBS 16 x 128) | 300 steps = 614.4k tokens | 0.6 tokens per "
            "active parameter");
  EXPECT_THAT(lines[5], MatchesRegex("flops     .* MFLOP / token \\(.* matmul . .* causal "
                                     "attention\\)"));
  EXPECT_THAT(lines[6], MatchesRegex("memory    per rank: parameters 0.01 .* of .* GiB"));
  EXPECT_EQ(lines[7], "data      two files");
  EXPECT_EQ(lines[8], "resume    from scratch");
  EXPECT_EQ(lines[9], "! slow");
}

TEST(PeakFlops, IsKnownOfHopperBoards) {
  EXPECT_EQ(peak_flops("NVIDIA H200 (cuda:0)", "bf16"), 989e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 (cuda:0)", "fp32"), 67e12);
  EXPECT_EQ(peak_flops("cpu", "fp32"), 0);
}

TEST(DurationText, HasTwoUnits) {
  const std::vector<std::pair<double, std::string>> cases = {
      {0.4, "0s"},        {12, "12s"},        {59.6, "1m 00s"},
      {200, "3m 20s"},    {3599.7, "1h 00m"}, {7500, "2h 05m"},
      {86399, "23h 59m"}, {86400, "1d 0h"},   {4 * 86400 + 3 * 3600 + 59, "4d 3h"}};
  for (const auto& [seconds, text] : cases) EXPECT_EQ(duration_text(seconds), text);
}

TEST(CountText, HasAUnit) {
  const std::vector<std::pair<double, std::string>> cases = {{0, "0"},
                                                             {999, "999"},
                                                             {999.6, "1.0k"},
                                                             {17700, "17.7k"},
                                                             {999.6e3, "1.00 M"},
                                                             {4194304, "4.19 M"},
                                                             {6.919e9, "6.92 B"},
                                                             {1e12, "1.00 T"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(count_text(value), text);
}

}  // namespace
}  // namespace ferry
