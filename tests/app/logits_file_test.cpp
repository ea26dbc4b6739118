#include "app/logits_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "app/evaluation.h"
#include "core/check.h"
#include "tests/app/saved_values.h"
#include "tests/app/small_run.h"
#include "tests/support/devices.h"
#include "tests/support/run_ranks.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSeq = 16, kVocab = 64;

class LogitsFileTest : public testing::CpuTest {
 protected:
  static std::string content(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  /// The logits of one batch of 8 samples, and its loss.
  EvaluationResult write(const RunConfig& config, const std::filesystem::path& path,
                         int64_t max_samples, int64_t expected_samples) {
    const auto device = make_cpu_device();
    const auto stream = device->make_stream("test");
    const auto solo = make_solo_group();
    const MeshGroups groups(Mesh(1, mesh_sizes(config.parallel)), *solo);
    ParallelModel model(config, *stream, groups);
    EvaluationResult result;
    {
      LogitsFile logits(model, path, max_samples);
      result = evaluate(model, open_validation_data(config, 1), 1);
      EXPECT_EQ(logits.write(), expected_samples);
    }
    evaluate(model, open_validation_data(config, 1), 1);  // nobody observes any more
    return result;
  }

  testing::TempDir dir_;
};

TEST_F(LogitsFileTest, TheLogitsHaveTheLoss) {
  // Tensors of every float dtype become FP32.
  for (const char* precision : {"fp32", "fp64", "bf16"}) {
    SCOPED_TRACE(precision);
    const RunConfig config = testing::small_run(dir_, {concat("model.precision=", precision)});
    const auto path = dir_ / precision;
    const EvaluationResult result = write(config, path, 8, 8);
    const std::string bytes = content(path);
    ASSERT_EQ(bytes.size(), 128 + 8 * kSeq * kVocab * sizeof(float));
    EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
    EXPECT_THAT(bytes.substr(10, 118),
                HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (8, 16, 64)}"));
    EXPECT_EQ(bytes[127], '\n');
    std::vector<float> logits(8 * kSeq * kVocab);
    std::memcpy(logits.data(), bytes.data() + 128, bytes.size() - 128);

    const auto data = open_validation_data(config, 1);
    double sum = 0;
    for (size_t sample = 0; sample < 8; ++sample) {
      std::vector<int32_t> tokens(kSeq + 1);
      data->sample(static_cast<int64_t>(sample), tokens);
      for (size_t i = 0; i < kSeq; ++i) {
        const float* row = logits.data() + (sample * kSeq + i) * kVocab;
        double total = 0;
        for (size_t v = 0; v < kVocab; ++v) total += std::exp(double{row[v]});
        sum += std::log(total) - double{row[tokens[i + 1]]};
      }
    }
    EXPECT_NEAR(sum / (8 * kSeq), result.loss, 1e-5);
  }
}

TEST_F(LogitsFileTest, HasTheFirstSamples) {
  const RunConfig config = testing::small_run(dir_);
  write(config, dir_ / "all", 100, 8);
  write(config, dir_ / "three", 3, 3);  // of micro-batches of 2
  EXPECT_EQ(content(dir_ / "three").substr(128),
            content(dir_ / "all").substr(128, 3 * kSeq * kVocab * sizeof(float)));
}

TEST_F(LogitsFileTest, NothingIsOverwritten) {
  std::ofstream(dir_ / "there") << "text";
  EXPECT_THAT(testing::error_of(ExitCode::Storage,
                                [&] { write(testing::small_run(dir_), dir_ / "there", 1, 1); }),
              HasSubstr("cannot create"));
  EXPECT_EQ(content(dir_ / "there"), "text");
}

TEST_F(LogitsFileTest, SeveralRanksAreRefused) {
  const RunConfig config = testing::small_run(dir_, {}, 2);
  testing::run_ranks(2, [&](Group& world, Control&) {
    const auto device = make_cpu_device();
    const auto stream = device->make_stream("test");
    const MeshGroups groups(Mesh(2, mesh_sizes(config.parallel)), world);
    ParallelModel model(config, *stream, groups);
    EXPECT_THAT(testing::error_of(ExitCode::Usage,
                                  [&] { const LogitsFile logits(model, dir_ / "file", 1); }),
                HasSubstr("error: --logits on 2 ranks\n  why : logits are written by one rank"));
  });
}

}  // namespace
}  // namespace ferry
