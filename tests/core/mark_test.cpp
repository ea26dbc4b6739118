#include "core/mark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "core/check.h"
#include "tests/support/temp_dir.h"

namespace ferry::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void write_file(const TempDir& dir, int rank, const std::string& text) {
  std::ofstream(dir.path() / concat("rank-000", rank, ".mark")) << text << '\n';
}

std::string line(int64_t step, const std::string& operation, double since, int waits) {
  return concat("step ", step, " since ", static_cast<int64_t>(since), ".000 waits ", waits,
                " host node-b operation ", operation, "     ");
}

TEST(Mark, SaysStepAndOperation) {
  mark(7, "forward");
  EXPECT_EQ(mark_text(), "step 7, forward");
  EXPECT_STREQ(mark_text_in_memory(), "step 7, forward");
  mark(0, "reading data");
  EXPECT_EQ(mark_text(), "reading data");
  mark(8, std::string(1000, 'x'));  // more than there is room for
  EXPECT_THAT(mark_text(), MatchesRegex("step 8, x+"));
  EXPECT_LT(mark_text().size(), 200u);
}

TEST(Mark, IsSeenByAnotherProcess) {
  share_mark();
  mark(1, "before");
  const int64_t marks_before = num_marks();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    mark(2, "in the child");
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(mark_text(), "step 2, in the child");
  EXPECT_EQ(num_marks(), marks_before + 1);
}

TEST(Mark, GoesToAFileOfTheRun) {
  const TempDir dir;
  mark(3, "forward");
  write_marks_to(dir.path(), 1, 3, "node-a");
  const double before = now();
  mark(4, "all-reduce of norms");
  const std::vector<RankMark> marks = read_marks(dir.path(), 3);
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0].rank, 1);
  EXPECT_EQ(marks[0].host, "node-a");
  EXPECT_EQ(marks[0].step, 4);
  EXPECT_EQ(marks[0].operation, "all-reduce of norms");
  EXPECT_NEAR(marks[0].since, before, 5);
  EXPECT_EQ(marks[0].num_waits, 0);
  {
    const WaitingMark waiting;
    EXPECT_EQ(read_marks(dir.path(), 3)[0].num_waits, 1);
  }
  EXPECT_EQ(read_marks(dir.path(), 3)[0].num_waits, 0);
  // Always one line of one size.
  std::ifstream file(dir.path() / "rank-0001.mark");
  std::string text, more;
  ASSERT_TRUE(std::getline(file, text));
  EXPECT_EQ(text.size(), 255u);
  EXPECT_FALSE(std::getline(file, more));
}

TEST(Mark, AFileThatCannotBeMadeIsAStorageError) {
  const TempDir dir;
  try {
    write_marks_to(dir.path() / "absent", 0, 1, "node-a");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Storage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("absent/rank-0000.mark"), HasSubstr("run.dir")));
  }
}

TEST(Mark, FilesThatAreNoMarksAreLeftOut) {
  const TempDir dir;
  write_file(dir, 0, "garbage");
  write_file(dir, 1, line(2, "forward", now(), 0));
  write_file(dir, 2, "step 2 since 3 waits 0 host node-b");
  ASSERT_EQ(read_marks(dir.path(), 4).size(), 1u);
  EXPECT_EQ(read_marks(dir.path(), 4)[0].rank, 1);
}

class RanksBehind : public ::testing::Test {
 protected:
  // This process is rank 0 of four.
  void be_in(int64_t step, const std::string& operation) {
    write_marks_to(dir_.path(), 0, 4, "node-a");
    mark(step, operation);
  }
  void others_are(int rank, const std::string& text) { write_file(dir_, rank, text); }
  TempDir dir_;
};

TEST_F(RanksBehind, AreThoseThatDoNotWait) {
  be_in(5, "backward");
  others_are(1, line(5, "backward", now(), 1));
  others_are(2, line(6, "forward", now() - 12, 0));
  others_are(3, line(5, "backward", now() - 40, 1));
  const WaitingMark waiting;
  EXPECT_THAT(ranks_behind(),
              MatchesRegex("rank 2 on node-b \\(step 6, forward, for 1[23]\\.[0-9] s\\)"));
}

TEST_F(RanksBehind, AreThoseWithTheEarliestMarkIfAllWait) {
  be_in(5, "backward");
  others_are(1, line(5, "forward", now() - 30, 1));
  others_are(2, line(5, "backward", now(), 1));
  others_are(3, line(5, "forward", now() - 20, 2));
  const WaitingMark waiting;
  EXPECT_THAT(ranks_behind(), AllOf(HasSubstr("rank 1 on node-b (step 5, forward, for 3"),
                                    HasSubstr("rank 3 on node-b (step 5, forward, for 2"),
                                    ::testing::Not(HasSubstr("rank 2"))));
}

TEST_F(RanksBehind, AreAllInTheSameOperation) {
  be_in(5, "save");
  for (const int rank : {1, 2, 3}) others_are(rank, line(5, "save", now(), 1));
  const WaitingMark waiting;
  EXPECT_EQ(ranks_behind(), "all ranks are in step 5, save");
}

TEST_F(RanksBehind, AWaitThatWasGivenUpStillCounts) {
  be_in(5, "backward");
  try {
    const WaitingMark waiting;
    fail(ExitCode::Lost, "given up");
  } catch (const Error&) {
  }
  EXPECT_EQ(read_marks(dir_.path(), 1)[0].num_waits, 1);
}

TEST_F(RanksBehind, AreNotKnownToARankAlone) {
  write_marks_to(dir_.path(), 0, 1, "node-a");
  EXPECT_EQ(ranks_behind(), "");
}

}  // namespace
}  // namespace ferry::testing
