#include "app/gemm_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "core/check.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_dir.h"

namespace ferry::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const GemmPlatform kPlatform{"NVIDIA H200", "13.1.0", "13.0"};

GemmMeasurement some_measurement(uint64_t number) {
  GemmMeasurement measurement;
  for (size_t i = 0; i < measurement.algorithm.size(); ++i)
    measurement.algorithm[i] = number * (i + 1);
  measurement.us = 12.125;
  measurement.heuristic_us = 13.5;
  return measurement;
}

class GemmCacheTest : public ::testing::Test {
 protected:
  fs::path path() const { return dir_ / "gemm.json"; }
  void write(const std::string& text) const { std::ofstream(path(), std::ios::trunc) << text; }
  std::string contents() const {
    std::ifstream in(path());
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void add(const std::string& kind, uint64_t number) const {
    add_to_gemm_cache(path(), kPlatform, kind, some_measurement(number));
  }
  GemmCache read() const { return read_gemm_cache(path(), kPlatform); }
  GemmCache agree(UnknownGemm unknown) const {
    SoloControl control;
    return agree_on_gemm_cache(path(), kPlatform, unknown, control);
  }

  TempDir dir_;
};

TEST_F(GemmCacheTest, KeepsEveryBit) {
  constexpr uint64_t kAll = ~uint64_t{0};
  add("1 x [4, 8] bf16", kAll);
  add("another", 1);
  add("another", 2);
  const GemmCache cache = read();
  EXPECT_TRUE(cache.found);
  EXPECT_EQ(cache.problem, "");
  EXPECT_EQ(cache.products, (GemmMeasurements{{"1 x [4, 8] bf16", some_measurement(kAll)},
                                              {"another", some_measurement(2)}}));
}

// The format of the header's comment: files outlive programs.
TEST_F(GemmCacheTest, IsADocumentOfItsFormat) {
  add("kind", 1);
  const auto json = nlohmann::json::parse(contents());
  EXPECT_EQ(json["format"], 1);
  EXPECT_EQ(json["gpu"], "NVIDIA H200");
  EXPECT_EQ(json["cublas"], "13.1.0");
  EXPECT_EQ(json["driver for cuda"], "13.0");
  EXPECT_EQ(json["products"]["kind"]["algorithm"],
            "0000000000000001000000000000000200000000000000030000000000000004"
            "0000000000000005000000000000000600000000000000070000000000000008");
  EXPECT_EQ(json["products"]["kind"]["us"], 12.125);
  EXPECT_EQ(json["products"]["kind"]["heuristic_us"], 13.5);
}

TEST_F(GemmCacheTest, SaysThatThereIsNone) {
  const GemmCache cache = read();
  EXPECT_FALSE(cache.found);
  EXPECT_TRUE(cache.products.empty());
  EXPECT_EQ(cache.problem, path().string() + " does not exist");
}

TEST_F(GemmCacheTest, IgnoresAndReplacesDamage) {
  add("kind", 1);
  const std::string whole = contents();
  const auto altered = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::vector<std::string> damaged = {
      "",
      "[]",
      "not JSON",
      whole.substr(0, whole.size() / 2),
      altered("\"format\": 1", "\"format\": \"1\""),
      altered("\"format\"", "\"other\""),
      altered("\"gpu\"", "\"other\""),
      altered("\"cublas\": \"13.1.0\"", "\"cublas\": 13"),
      altered("\"products\"", "\"other\""),
      altered("\"kind\": {", "\"kind\": 3, \"x\": {"),
      altered("0000000000000001", "000000000000001"),    // a digit is missing
      altered("0000000000000001", "000000000000000g"),   // no digit
      altered("0000000000000001", "00000000000000001"),  // a digit too much
      altered("\"us\"", "\"other\""),
      altered("13.5", "\"13.5\""),
      altered("\"algorithm\"", "\"other\""),
  };
  for (const std::string& text : damaged) {
    SCOPED_TRACE(text);
    write(text);
    const GemmCache cache = read();
    EXPECT_TRUE(cache.found);
    EXPECT_TRUE(cache.products.empty());
    EXPECT_EQ(cache.problem, path().string() + " holds no measured products, or is damaged");
    add("new", 3);
    EXPECT_EQ(read().products, (GemmMeasurements{{"new", some_measurement(3)}}));
  }
}

TEST_F(GemmCacheTest, IsOfOneGpuModelAndOneCublas) {
  add("kind", 1);
  EXPECT_EQ(read_gemm_cache(path(), {"NVIDIA H100", "13.1.0", "13.0"}).problem,
            path().string() +
                " was measured on NVIDIA H200 with cuBLAS 13.1.0, not on NVIDIA H100 with cuBLAS "
                "13.1.0");
  EXPECT_THAT(read_gemm_cache(path(), {"NVIDIA H200", "13.2.0", "13.0"}).problem,
              HasSubstr("not on NVIDIA H200 with cuBLAS 13.2.0"));
  EXPECT_EQ(read_gemm_cache(path(), {"NVIDIA H200", "13.1.0", "13.4"}).products.size(), 1);
  add_to_gemm_cache(path(), {"NVIDIA H100", "13.1.0", "13.0"}, "new", some_measurement(2));
  EXPECT_THAT(read().problem, HasSubstr("was measured on NVIDIA H100"));
}

TEST_F(GemmCacheTest, IsOfOneFormat) {
  write(R"({"format": 2, "gpu": "NVIDIA H200", "cublas": "13.1.0", "products": {}})");
  EXPECT_EQ(read().problem, path().string() + " is of another version of Ferry");
}

TEST_F(GemmCacheTest, LosesNothingOfSeveralWriters) {
  constexpr int kWriters = 4, kEach = 12;
  std::atomic<bool> done = false;
  std::atomic<int> unreadable = 0;
  add("first", 0);
  std::thread reader([&] {
    while (!done)
      if (!read().problem.empty()) ++unreadable;
  });
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer)
    writers.emplace_back([&, writer] {
      for (int i = 0; i < kEach; ++i)
        add(concat(writer, "/", i), static_cast<uint64_t>(100 * writer + i));
    });
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_EQ(unreadable, 0);
  EXPECT_EQ(read().products.size(), 1 + kWriters * kEach);
  EXPECT_EQ(read().products.at("3/7"), some_measurement(307));
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir_.path()))
    names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"gemm.json", "gemm.json.lock"}));
}

TEST_F(GemmCacheTest, SaysWhatItCannotWrite) {
  const fs::path nowhere = dir_ / "no" / "gemm.json";
  SoloControl control;
  try {
    agree_on_gemm_cache(nowhere, kPlatform, UnknownGemm::Measure, control);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Storage);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("cannot create " + nowhere.string() + ".lock: No such file"),
                      HasSubstr("why : run.gemm_cache keeps"), HasSubstr("try : a path that")));
  }
  EXPECT_THROW(add_to_gemm_cache(nowhere, kPlatform, "kind", {}), Error);
}

TEST_F(GemmCacheTest, SaysWhatItCannotRead) {
  ASSERT_EQ(::mkdir(path().c_str(), 0700), 0);
  try {
    read();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Storage);
    EXPECT_THAT(error.what(), HasSubstr("cannot read " + path().string()));
  }
}

TEST(UnknownGemms, AreNotMeasuredWhereBitsMatter) {
  EXPECT_EQ(unknown_gemms(false, 1, false), UnknownGemm::Measure);
  EXPECT_EQ(unknown_gemms(false, 1, true), UnknownGemm::Measure);
  EXPECT_EQ(unknown_gemms(false, 2, false), UnknownGemm::Heuristic);
  EXPECT_EQ(unknown_gemms(false, 2, true), UnknownGemm::Record);
  for (const int ranks : {1, 2})
    for (const bool may_record : {false, true})
      EXPECT_EQ(unknown_gemms(true, ranks, may_record), UnknownGemm::Heuristic);
}

TEST_F(GemmCacheTest, MustBeThereWhereNothingIsMeasured) {
  const auto refusal = [&] {
    try {
      agree(UnknownGemm::Heuristic);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("error: run.gemm_cache cannot be used: " + path().string() +
                              " does not exist\n  why : a deterministic run"),
                    HasSubstr("try : ferry bench step")));
  EXPECT_FALSE(fs::exists(path().string() + ".lock"));  // nothing is to be written
  write("{");
  EXPECT_THAT(refusal(), HasSubstr("or is damaged"));
  add("kind", 1);
  EXPECT_EQ(refusal(), "no error");
  EXPECT_EQ(agree(UnknownGemm::Heuristic).products.size(), 1);
}

TEST_F(GemmCacheTest, MayBeMissingOrForeignWhereProductsAreMeasured) {
  for (const UnknownGemm unknown : {UnknownGemm::Measure, UnknownGemm::Record}) {
    EXPECT_FALSE(agree(unknown).found);
    write("{");
    EXPECT_TRUE(agree(unknown).found);
    EXPECT_THAT(agree(unknown).problem, HasSubstr("or is damaged"));
    fs::remove(path());
  }
}

// As on hosts that do not share the file.
TEST_F(GemmCacheTest, IsRankZerosOnAllRanks) {
  add("kind", 7);
  run_ranks(3, [&](Group&, Control& control) {
    const fs::path own = control.rank() == 0 ? path() : dir_ / "elsewhere";
    const GemmCache cache = agree_on_gemm_cache(own, kPlatform, UnknownGemm::Heuristic, control);
    EXPECT_EQ(cache.products, (GemmMeasurements{{"kind", some_measurement(7)}}));
    EXPECT_TRUE(cache.found);
  });
  std::atomic<int> refused = 0;
  run_ranks(3, [&](Group&, Control& control) {
    const fs::path own = control.rank() == 0 ? dir_ / "elsewhere" : path();
    try {
      agree_on_gemm_cache(own, kPlatform, UnknownGemm::Heuristic, control);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      EXPECT_THAT(error.what(), HasSubstr("elsewhere does not exist"));
      ++refused;
    }
  });
  EXPECT_EQ(refused, 3);
}

// A GPU by its name; it computes nothing.
class NamedGpu final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::Cuda; }
  std::string name() const override { return "NVIDIA H200 (cuda:0)"; }
  std::unique_ptr<Stream> make_stream(std::string) override { return nullptr; }
  std::shared_ptr<Storage> allocate(Stream&, std::string_view, int64_t) override { return nullptr; }
  std::shared_ptr<Storage> allocate_host(std::string_view, int64_t) override { return nullptr; }
  int64_t total_bytes() const override { return 0; }
  int64_t free_bytes() const override { return 0; }
};

class OpenGemmCache : public GemmCacheTest {
 protected:
  void SetUp() override {
    config_.run.gemm_cache = path().string();
    config_.run.deterministic = false;
  }
  void TearDown() override { set_gemm_tuning({}); }
  void open(bool may_record, Control& control) {
    open_gemm_cache(config_, may_record, gpu_, control,
                    [&](const std::string& notice) { notices_.push_back(notice); });
  }
  void open(bool may_record = false) {
    SoloControl control;
    open(may_record, control);
  }
  void add_of_this_build(const std::string& kind, uint64_t number) {
    add_to_gemm_cache(path(), gemm_platform(gpu_), kind, some_measurement(number));
  }

  NamedGpu gpu_;
  RunConfig config_;
  std::vector<std::string> notices_;
};

TEST_F(OpenGemmCache, IsNotLookedForOnTheCpu) {
  config_.run.gemm_cache = (dir_ / "no" / "gemm.json").string();
  config_.run.deterministic = true;
  const auto before = gemm_tuning();
  SoloControl control;
  open_gemm_cache(config_, false, *make_cpu_device(), control);
  EXPECT_EQ(gemm_tuning(), before);
}

TEST_F(OpenGemmCache, TheHeuristicChoosesWithoutAFile) {
  set_gemm_tuning({{{"kind", some_measurement(1)}}, UnknownGemm::Measure, {}, {}});
  config_.run.gemm_cache = "";
  open();
  EXPECT_TRUE(gemm_tuning()->known.empty());
  EXPECT_EQ(gemm_tuning()->unknown, UnknownGemm::Heuristic);
  EXPECT_TRUE(fs::is_empty(dir_.path()));
}

TEST_F(OpenGemmCache, OneRankMeasuresWhatTheFileDoesNotHold) {
  add_of_this_build("kind", 1);
  open();
  EXPECT_EQ(gemm_tuning()->known, (GemmMeasurements{{"kind", some_measurement(1)}}));
  EXPECT_EQ(gemm_tuning()->unknown, UnknownGemm::Measure);
  gemm_tuning()->on_measured("another", some_measurement(2));
  const GemmCache cache = read_gemm_cache(path(), gemm_platform(gpu_));
  EXPECT_EQ(cache.products,
            (GemmMeasurements{{"kind", some_measurement(1)}, {"another", some_measurement(2)}}));
  EXPECT_TRUE(notices_.empty());
}

TEST_F(OpenGemmCache, ADeterministicRunNeedsTheFile) {
  config_.run.deterministic = true;
  for (const bool may_record : {false, true}) {
    fs::remove(path());
    EXPECT_THROW(open(may_record), Error);
    add_of_this_build("kind", 1);
    open(may_record);
    EXPECT_EQ(gemm_tuning()->known.size(), 1);
    EXPECT_EQ(gemm_tuning()->unknown, UnknownGemm::Heuristic);
  }
}

TEST_F(OpenGemmCache, OfSeveralRanksOnlyABenchmarkMayDoWithoutTheFile) {
  run_ranks(2, [&](Group&, Control& control) {
    EXPECT_THROW(open(/*may_record=*/false, control), Error);
    open(/*may_record=*/true, control);
    EXPECT_EQ(gemm_tuning()->unknown, UnknownGemm::Record);
  });
  EXPECT_TRUE(notices_.empty());
}

TEST_F(OpenGemmCache, RankZeroNamesAFileThatDoesNotFit) {
  write("{");
  run_ranks(2, [&](Group&, Control& control) { open(/*may_record=*/true, control); });
  EXPECT_THAT(notices_, ::testing::ElementsAre(path().string() +
                                               " holds no measured products, or is damaged: "
                                               "products are measured anew, and it is replaced"));
  ::testing::internal::CaptureStderr();
  SoloControl control;
  open_gemm_cache(config_, false, gpu_, control);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "! " + notices_.at(0) + "\n");
}

TEST_F(OpenGemmCache, NamesAnAlgorithmThatCublasDoesNotTake) {
  open();
  ::testing::internal::CaptureStderr();
  gemm_tuning()->on_notice("a problem");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "! " + path().string() + ": a problem\n");
}

}  // namespace
}  // namespace ferry::testing
