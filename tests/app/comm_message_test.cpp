#include "app/comm_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/planted_group.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr CommKind kKinds[] = {CommKind::AllReduce, CommKind::AllGather, CommKind::ReduceScatter,
                               CommKind::AllToAll, CommKind::PointToPoint};

class Ranks {
 public:
  explicit Ranks(Group& world)
      : device_(make_cpu_device()),
        stream_(device_->make_stream("test")),
        world_(world),
        ring_(world, *device_, 2) {}

  CommMessage message(CommKind kind, int64_t bytes, DType dtype = DType::BF16) {
    return CommMessage(kind, bytes, dtype, *stream_, world_, ring_);
  }
  /// `other` takes the place of the world in the collectives.
  CommMessage message(CommKind kind, Group& other, int64_t bytes) {
    return CommMessage(kind, bytes, DType::F32, *stream_, other, ring_);
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Group& world_;
  PipelineLinks ring_;
};

// "" or the text of the error.
std::string error_of(CommMessage message, uint64_t sent = 7, uint64_t wanted = 7) {
  message.fill(sent);
  message.restore();
  message.enqueue();
  try {
    message.check(wanted);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Internal);
    return error.what();
  }
  return "";
}

TEST(CommMessage, ComesOutRight) {
  for (const int size : {2, 3, 4})
    run_ranks(size, [](Group& world, Control&) {
      Ranks ranks(world);
      for (const CommKind kind : kKinds)
        for (const DType dtype : {DType::BF16, DType::F32})
          for (const int64_t bytes : {1, 100, 4096, 1 << 16})
            EXPECT_EQ(error_of(ranks.message(kind, bytes, dtype)), "") << name_of(kind) << bytes;
    });
}

// Longer than the period of its numbers.
TEST(CommMessage, MayBeLong) {
  run_ranks(2, [](Group& world, Control&) {
    Ranks ranks(world);
    for (const CommKind kind : kKinds)
      EXPECT_EQ(error_of(ranks.message(kind, 10'000'000)), "") << name_of(kind);
  });
}

TEST(CommMessage, CanBeRepeated) {
  run_ranks(2, [](Group& world, Control&) {
    Ranks ranks(world);
    for (const CommKind kind : kKinds) {
      CommMessage message = ranks.message(kind, 4096);
      message.fill(1);
      for (int i = 0; i < 3; ++i) {
        message.restore();
        message.enqueue();
      }
      EXPECT_NO_THROW(message.check(1)) << name_of(kind);
    }
  });
}

TEST(CommMessage, HasEqualPartsForAllRanks) {
  run_ranks(3, [](Group& world, Control&) {
    Ranks ranks(world);
    EXPECT_EQ(ranks.message(CommKind::AllGather, 4096).bytes(), 4092);
    EXPECT_EQ(ranks.message(CommKind::AllReduce, 4096, DType::F32).bytes(), 4092);
    EXPECT_EQ(ranks.message(CommKind::AllReduce, 1, DType::F32).bytes(), 12);
  });
}

TEST(CommMessage, OtherNumbersAreWrong) {
  run_ranks(2, [](Group& world, Control&) {
    Ranks ranks(world);
    for (const CommKind kind : kKinds)
      EXPECT_THAT(
          error_of(ranks.message(kind, 4096), 7, 8),
          AllOf(HasSubstr(concat("wrong result of ", name_of(kind), " on group world")),
                HasSubstr("4096 bytes of bf16"), HasSubstr("of rank "), HasSubstr(", not ")));
  });
}

TEST(CommMessage, MistakesOfCollectivesAreFound) {
  const std::pair<CommKind, Mistake> mistakes[] = {
      {CommKind::AllReduce, Mistake::SkipSum},
      {CommKind::AllReduce, Mistake::DoubleSum},
      {CommKind::AllReduce, Mistake::AverageSum},
      {CommKind::ReduceScatter, Mistake::SkipSum},
      {CommKind::ReduceScatter, Mistake::RotateScatter},
      {CommKind::AllGather, Mistake::RotateGather}};
  // Long ones, too, whose parts are as many elements as a power of two.
  for (const int64_t bytes : {4096, 1 << 24})
    run_ranks(2, [&](Group& world, Control&) {
      Ranks ranks(world);
      for (const auto& [kind, mistake] : mistakes) {
        PlantedGroup planted(world, "world", mistake);
        EXPECT_THAT(error_of(ranks.message(kind, planted, bytes)), HasSubstr("wrong result of "))
            << name_of(kind) << static_cast<int>(mistake) << ", " << bytes;
      }
    });
}

TEST(CommMessage, TheLastElementOfALongOneIsChecked) {
  run_ranks(2, [](Group& world, Control&) {
    Ranks ranks(world);
    PlantedGroup planted(world, "world", Mistake::SpoilGather);
    EXPECT_THAT(error_of(ranks.message(CommKind::AllGather, planted, 1 << 24)),
                HasSubstr("element 4194303 of rank"));
  });
}

TEST(CommMessage, NeedsARing) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("test");
  const auto solo = make_solo_group();
  PipelineLinks none(*solo, *device, 2);
  EXPECT_THROW(CommMessage(CommKind::AllReduce, 64, DType::F32, *stream, *solo, none), Error);
}

TEST(BusFactor, IsThatOfTheTestsOfNccl) {
  EXPECT_DOUBLE_EQ(bus_factor(CommKind::AllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(CommKind::AllReduce, 2), 1);
  for (const CommKind kind : {CommKind::AllGather, CommKind::ReduceScatter, CommKind::AllToAll})
    EXPECT_DOUBLE_EQ(bus_factor(kind, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CommKind::PointToPoint, 4), 1);
}

}  // namespace
}  // namespace ferry::testing
