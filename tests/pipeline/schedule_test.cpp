#include "pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/check.h"
#include "pipeline/simulate.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Action::Kind kForward = Action::Kind::Forward;
constexpr Action::Kind kBackward = Action::Kind::Backward;

std::string line(const ScheduleShape& shape, int rank) {
  std::string text;
  for (const Action& action : make_schedule(shape, rank))
    text += (text.empty() ? "" : " ") + action_text(action, shape.num_chunks);
  return text;
}

std::string refusal(const ScheduleShape& shape) {
  try {
    make_schedule(shape, 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// What every rank's list must be, whatever the schedule.
void expect_complete(const ScheduleShape& shape, const std::vector<Action>& actions) {
  ASSERT_EQ(actions.size(), static_cast<size_t>(2 * shape.num_micro * shape.num_chunks));
  std::vector<int> forward(static_cast<size_t>(shape.num_chunks)), backward = forward;
  for (const Action& action : actions) {
    ASSERT_TRUE(action.chunk >= 0 && action.chunk < shape.num_chunks);
    const size_t chunk = static_cast<size_t>(action.chunk);
    // The next micro-batch of the chunk, in both directions.
    ASSERT_EQ(action.micro, (action.kind == kForward ? forward : backward)[chunk]++);
    ASSERT_LE(backward[chunk], forward[chunk]);
  }
  for (size_t chunk = 0; chunk < forward.size(); ++chunk) {
    ASSERT_EQ(forward[chunk], shape.num_micro);
    ASSERT_EQ(backward[chunk], shape.num_micro);
  }
}

struct Grid {
  int num_ranks, group;
};

class Schedules : public ::testing::TestWithParam<std::tuple<Grid, int, int>> {};

TEST_P(Schedules, AreCompleteAndFreeOfDeadlock) {
  const auto& [grid, num_micro, num_chunks] = GetParam();
  for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward,
                                  ScheduleKind::Interleaved, ScheduleKind::ForwardOnly}) {
    if (kind == ScheduleKind::OneForwardOneBackward && num_chunks > 1) continue;
    const ScheduleShape shape{kind, grid.num_ranks, num_chunks, num_micro, grid.group};
    const int rest = num_micro % grid.group;
    if (kind == ScheduleKind::Interleaved &&
        (grid.group > num_micro || (rest > 0 && rest < grid.num_ranks))) {
      EXPECT_THAT(refusal(shape), HasSubstr("no interleaved pipeline schedule"));
      continue;
    }
    const auto schedules = make_schedules(shape);
    ASSERT_EQ(schedules.size(), static_cast<size_t>(grid.num_ranks));
    if (kind != ScheduleKind::ForwardOnly)
      for (const auto& actions : schedules) expect_complete(shape, actions);
    EXPECT_NO_THROW(simulate(shape, schedules));
    EXPECT_NO_THROW(simulate(shape, schedules, {.forward = 3, .backward = 1, .message = 5}));
  }
}

std::string instance_name(const ::testing::TestParamInfo<Schedules::ParamType>& info) {
  const auto& [grid, num_micro, num_chunks] = info.param;
  return concat("ranks", grid.num_ranks, "_group", grid.group, "_micro", num_micro, "_chunks",
                num_chunks);
}

INSTANTIATE_TEST_SUITE_P(All, Schedules,
                         ::testing::Combine(::testing::Values(Grid{1, 1}, Grid{2, 2}, Grid{2, 4},
                                                              Grid{4, 4}, Grid{4, 5}, Grid{8, 9},
                                                              Grid{8, 11}, Grid{3, 4}),
                                            ::testing::Values(8, 32, 19),
                                            ::testing::Values(1, 2, 4, 8)),
                         instance_name);

TEST(Schedule, OneRankGoesBackAfterEachForwardPass) {
  EXPECT_EQ(line({.num_micro = 3}, 0), "F0 B0 F1 B1 F2 B2");
}

TEST(Schedule, WarmUpIsAsLongAsThePipelineBehind) {
  const ScheduleShape shape{.num_ranks = 4, .num_micro = 6};
  EXPECT_EQ(line(shape, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5");
  EXPECT_EQ(line(shape, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5");
  EXPECT_EQ(line(shape, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
}

TEST(Schedule, FewerMicroBatchesThanRanks) {
  const ScheduleShape shape{.num_ranks = 4, .num_micro = 2};
  EXPECT_EQ(line(shape, 0), "F0 F1 B0 B1");
  EXPECT_EQ(line(shape, 2), "F0 F1 B0 B1");
  EXPECT_EQ(line(shape, 3), "F0 B0 F1 B1");
  for (int num_ranks = 1; num_ranks <= 6; ++num_ranks)
    for (int num_micro = 1; num_micro <= 7; ++num_micro)
      for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward}) {
        const ScheduleShape any{.kind = kind, .num_ranks = num_ranks, .num_micro = num_micro};
        for (const auto& actions : make_schedules(any)) expect_complete(any, actions);
        EXPECT_NO_THROW(simulate(any, make_schedules(any)));
      }
}

// Order of micro-batches 0 1 2 0 1 2 3 4 3 4 and of chunks 0 0 0 1 1 1 0 0 1 1, forward; the chunks
// are the other way round backward.
TEST(Schedule, InterleavedGroupsTakeTurns) {
  const ScheduleShape shape{ScheduleKind::Interleaved, 2, 2, 5, 3};
  std::string forward, backward;
  for (const Action& action : make_schedule(shape, 0))
    (action.kind == kForward ? forward : backward) += ' ' + action_text(action, 2);
  EXPECT_EQ(forward, " F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 F3.0 F4.0 F3.1 F4.1");
  EXPECT_EQ(backward, " B0.1 B1.1 B2.1 B0.0 B1.0 B2.0 B3.1 B4.1 B3.0 B4.0");
}

TEST(Schedule, InterleavedWarmUp) {
  const auto warm_up = [](const ScheduleShape& shape, int rank) {
    const std::vector<Action> actions = make_schedule(shape, rank);
    const auto first = std::find_if(actions.begin(), actions.end(),
                                    [](const Action& action) { return action.kind == kBackward; });
    // One of them is the steady state's.
    return first - actions.begin() - 1;
  };
  const ScheduleShape shape{ScheduleKind::Interleaved, 4, 3, 16, 4};
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(warm_up(shape, rank), 2 * (3 - rank) + 2 * 4);
  EXPECT_EQ(warm_up({ScheduleKind::Interleaved, 4, 2, 20, 10}, 1), 2 * 2 + 10);
  // No more than there are: 2 * 3 + 1 * 4 of 8.
  EXPECT_EQ(line({ScheduleKind::Interleaved, 4, 2, 4}, 0).find('B'),
            std::string("F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 ").size());
}

TEST(Schedule, TheUsualKind) {
  EXPECT_EQ(usual_schedule(1), ScheduleKind::OneForwardOneBackward);
  EXPECT_EQ(usual_schedule(2), ScheduleKind::Interleaved);
}

TEST(Schedule, RefusalsSayWhatIsWrong) {
  EXPECT_THAT(refusal({ScheduleKind::Interleaved, 4, 2, 8, 3}),
              AllOf(HasSubstr("no interleaved pipeline schedule of 4 ranks, 2 virtual stages and 8 "
                              "micro-batches in groups of 3"),
                    HasSubstr("why : ranks would wait for each other with fewer than 4 in a row"),
                    HasSubstr("try : groups of 4")));
  EXPECT_THAT(refusal({ScheduleKind::Interleaved, 4, 2, 3}),
              AllOf(HasSubstr("why : a step has only 3 micro-batches"),
                    HasSubstr("try : at least 4 micro-batches, or one virtual stage")));
  EXPECT_THAT(refusal({ScheduleKind::Interleaved, 4, 2, 8, 5}),
              AllOf(HasSubstr("why : the last group has 3, fewer than there are ranks"),
                    HasSubstr("try : a number of micro-batches that 5 divides")));
  // Evaluation takes any number.
  EXPECT_EQ(line({ScheduleKind::ForwardOnly, 4, 2, 3}, 1), "F0.0 F1.0 F2.0 F0.1 F1.1 F2.1");
}

TEST(Schedule, ImpossibleShapesAreOurMistake) {
  const auto expect_internal = [](const ScheduleShape& shape, int rank, const std::string& text) {
    try {
      make_schedule(shape, rank);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Internal);
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  expect_internal({.num_ranks = 2}, 2, "rank 2 of 2");
  expect_internal({.num_micro = 0}, 0, "0 micro-batches");
  expect_internal({.num_chunks = 2}, 0, "2 chunks need an interleaved schedule");
}

TEST(Schedule, LongLinesAreCut) {
  const ScheduleShape shape{.num_ranks = 2, .num_micro = 100};
  const std::string text = schedule_text(shape, make_schedules(shape), 5);
  EXPECT_THAT(text, HasSubstr("\nrank 0  F0 F1 B0 ...195 more... B98 B99\n"));
  EXPECT_THAT(text, HasSubstr("\nrank 1  F0 B0 F1 ...195 more... F99 B99\n"));
  EXPECT_EQ(schedule_text(shape, make_schedules(shape), 200),
            schedule_text(shape, make_schedules(shape)));
  EXPECT_THAT(schedule_text(shape, make_schedules(shape), 1),
              HasSubstr("\nrank 0  F0 ...199 more...\n"));
}

struct Golden {
  const char* name;
  ScheduleShape shape;
};

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

class GoldenSchedules : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenSchedules, AreAsWritten) {
  const auto& [name, shape] = GetParam();
  const auto schedules = make_schedules(shape);
  const std::string text =
      schedule_text(shape, schedules) + simulation_text(simulate(shape, schedules));
  const std::string file = concat("tests/golden/schedules/", name, ".txt");
  std::ostringstream golden;
  golden << std::ifstream(concat(FERRY_SOURCE_DIR "/", file)).rdbuf();
  if (text == golden.str()) return;
  const std::filesystem::path made = std::filesystem::path(FERRY_BINARY_DIR) / "schedules";
  std::filesystem::create_directories(made);
  std::ofstream(made / concat(name, ".txt")) << text;
  ADD_FAILURE() << file << " differs from\n"
                << text << "if the change is meant: cp " << (made / concat(name, ".txt")).string()
                << ' ' << file;
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenSchedules,
    ::testing::Values(Golden{"gpipe_4_ranks", {ScheduleKind::GPipe, 4, 1, 4}},
                      Golden{"1f1b_4_ranks", {ScheduleKind::OneForwardOneBackward, 4, 1, 8}},
                      Golden{"1f1b_few_micro_batches",
                             {ScheduleKind::OneForwardOneBackward, 4, 1, 2}},
                      Golden{"interleaved_2_ranks", {ScheduleKind::Interleaved, 2, 2, 4}},
                      Golden{"interleaved_4_ranks", {ScheduleKind::Interleaved, 4, 2, 8}},
                      Golden{"interleaved_uneven_groups", {ScheduleKind::Interleaved, 2, 2, 5, 3}},
                      Golden{"evaluation_2_ranks", {ScheduleKind::ForwardOnly, 2, 2, 3}}),
    [](const auto& info) { return std::string("of_") + info.param.name; });

}  // namespace
}  // namespace ferry
