#pragma once

// Where this process is: the step and the operation, for whoever sees it die, hang or fail.
//
// A mark lies in memory that a forked process shares, so that the process that watches a rank
// (app/supervisor.h) can read it after the rank's end, and in a small file of the run, so that the
// ranks of a job that hangs can say which of them is behind.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ferry {

/// From now on this process is in `operation` ("forward", "save") of `step`; step 0 is before the
/// first. Any thread; costs a microsecond, and with a file one small write.
void mark(int64_t step, std::string_view operation);

/// "step 5, forward"; "start" before the first mark.
std::string mark_text();
/// The same, as a text that ends with 0 and may be read in a signal handler.
const char* mark_text_in_memory() noexcept;
/// Of this process, or of one that shares the memory; 0 before the first mark.
int64_t num_marks() noexcept;
/// Makes the memory of the mark. Call before a fork after which both processes use it.
void share_mark();

/// While one of these lives, this process waits for other ranks, so it is not the one that is
/// behind. For waits that have taken long.
class WaitingMark {
 public:
  WaitingMark();
  ~WaitingMark();
  WaitingMark(const WaitingMark&) = delete;
  WaitingMark& operator=(const WaitingMark&) = delete;
};

/// Writes this and all later marks to DIRECTORY/rank-0003.mark. Error(ExitCode::Storage) if it
/// cannot be made; a later write that fails is ignored, because a mark is only a hint.
void write_marks_to(const std::filesystem::path& directory, int rank, int num_ranks,
                    const std::string& host);

/// A line of a file of marks.
struct RankMark {
  int rank = 0;
  std::string host;
  int64_t step = 0;
  std::string operation;
  double since = 0;   // seconds since 1970, by the clock of its host
  int num_waits = 0;  // of WaitingMark
};
/// The marks of the ranks whose files are there and can be read, by rank.
std::vector<RankMark> read_marks(const std::filesystem::path& directory, int num_ranks);

/// Which ranks keep the others waiting, by the files beside this process's own: those that do not
/// wait themselves, or else those that have got least far. "rank 2 on node-b (step 5, forward, for
/// 12.1 s)"; or that all are in the same operation. Empty without a file.
std::string ranks_behind();

}  // namespace ferry
