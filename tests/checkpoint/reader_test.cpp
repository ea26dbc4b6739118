#include "checkpoint/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/saved_runs.h"

namespace ferry {
namespace {

using testing::begin;
using ::testing::HasSubstr;
using testing::RankSlices;
using testing::SampleModel;
using testing::SampleTensor;
using testing::save_with_ranks;
using testing::TempDir;

TEST(Reader, EveryBoxOfATensorCanBeLoaded) {
  const TempDir run;
  const SampleModel model;
  const Checkpoint checkpoint = Checkpoint::open(save_with_ranks(3, run.path(), model).directory);
  for (const SampleTensor& tensor : model.tensors()) {
    if (tensor.shape.rank() != 2) continue;
    for (int64_t r0 = 0; r0 < tensor.shape[0]; ++r0) {
      for (int64_t r1 = r0 + 1; r1 <= tensor.shape[0]; ++r1) {
        for (int64_t c0 = 0; c0 < tensor.shape[1]; ++c0) {
          for (int64_t c1 = c0 + 1; c1 <= tensor.shape[1]; ++c1) {
            const Box box{tensor.shape, {r0, c0}, {r1 - r0, c1 - c0}};
            std::vector<char> bytes(static_cast<size_t>(box.numel()) * size_of(tensor.dtype));
            const SliceToLoad wanted{tensor.name, tensor.dtype, tensor.shape,
                                     box.offset,  box.extent,   bytes.data()};
            EXPECT_EQ(checkpoint.load({&wanted, 1}).bytes, static_cast<int64_t>(bytes.size()));
            ASSERT_EQ(bytes, testing::cut(tensor, box)) << tensor.name << " " << to_string(box);
          }
        }
      }
    }
  }
}

TEST(Reader, BoxesOfFourDims) {
  const TempDir run;
  const SampleModel model;
  const Checkpoint checkpoint = Checkpoint::open(save_with_ranks(2, run.path(), model).directory);
  const SampleTensor& tensor = model.tensors()[6];
  const Box box{tensor.shape, {1, 1, 0, 1}, {1, 2, 2, 2}};
  std::vector<char> bytes(static_cast<size_t>(box.numel()) * size_of(tensor.dtype));
  const SliceToLoad wanted{tensor.name, tensor.dtype, tensor.shape,
                           box.offset,  box.extent,   bytes.data()};
  checkpoint.load({&wanted, 1});
  EXPECT_EQ(bytes, testing::cut(tensor, box));
}

TEST(Reader, LoadNamesWhatDoesNotFit) {
  const TempDir run;
  begin(run.path());
  const Checkpoint checkpoint =
      Checkpoint::open(testing::save_solo(run.path(), SampleModel()).directory);
  float value = 0;
  SliceToLoad wanted{"model/absent", DType::F32, {1}, {0}, {1}, &value};
  EXPECT_THAT(testing::storage_error([&] {
                checkpoint.load({&wanted, 1});
              }),
              HasSubstr("has no tensor model/absent"));
  wanted = {"model/layers/0/norm/weight", DType::F32, {8}, {0}, {1}, &value};
  EXPECT_THAT(testing::storage_error([&] {
                checkpoint.load({&wanted, 1});
              }),
              HasSubstr("is f32 [7], but this model needs f32 [8]"));
  wanted = {"model/layers/0/norm/weight", DType::I32, {7}, {0}, {1}, &value};
  EXPECT_THAT(testing::storage_error([&] {
                checkpoint.load({&wanted, 1});
              }),
              HasSubstr("but this model needs i32 [7]"));
}

}  // namespace
}  // namespace ferry
